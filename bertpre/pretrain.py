"""`accelerate launch [...] -m bertpre.pretrain RECIPE [key=value ...]` is `bertpre pretrain` on many processes."""

from bertpre.cli import launched


def main() -> None:
    """Entry point, once per process; also of `pretrain.py` in a checkout."""
    launched("pretrain")


if __name__ == "__main__":
    main()
