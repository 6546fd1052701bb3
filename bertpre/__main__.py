"""`python -m bertpre` is the same as `bertpre`."""

from bertpre.cli import main

if __name__ == "__main__":
    main()
