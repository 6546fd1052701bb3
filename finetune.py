"""`accelerate launch [...] finetune.py RECIPE [key=value ...]` is `accelerate launch [...] -m bertpre.finetune ...`."""

from bertpre.finetune import main

if __name__ == "__main__":
    main()
