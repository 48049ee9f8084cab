"""`python -m penstock.cli` is `penstock`."""

from penstock.cli import main

if __name__ == "__main__":
    main()
