"""`accelerate launch [...] finetune.py RECIPE [key=value ...]`: the same as `bertpre finetune`, on many processes."""

from bertpre.cli import launched

if __name__ == "__main__":
    launched("finetune")
