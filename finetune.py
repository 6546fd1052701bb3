"""`accelerate launch [...] finetune.py RECIPE [key=value ...]` is `bertpre finetune` on many processes."""

from bertpre.cli import launched

if __name__ == "__main__":
    launched("finetune")
