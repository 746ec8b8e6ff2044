"""`python -m relpos.cli`."""

from relpos.cli import main

if __name__ == "__main__":
    main()
