"""`accelerate launch [...] -m bertpre.finetune RECIPE [key=value ...]` is `bertpre finetune` on many processes."""

from bertpre.cli import launched


def main() -> None:
    """Entry point, once per process; also of `finetune.py` in a checkout."""
    launched("finetune")


if __name__ == "__main__":
    main()
