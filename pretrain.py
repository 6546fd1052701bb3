"""`accelerate launch [...] pretrain.py RECIPE [key=value ...]` is `accelerate launch [...] -m bertpre.pretrain ...`."""

from bertpre.pretrain import main

if __name__ == "__main__":
    main()
