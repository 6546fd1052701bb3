"""`accelerate launch [...] pretrain.py RECIPE [key=value ...]` is `bertpre pretrain` on many processes."""

from bertpre.cli import launched

if __name__ == "__main__":
    launched("pretrain")
