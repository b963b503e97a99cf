"""`python -m monograph`: the command line where no script is installed."""

from monograph.cli import main

if __name__ == "__main__":
    main()
