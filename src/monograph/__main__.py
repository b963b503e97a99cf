"""`python -m monograph`: the command line where no script is installed."""

from monograph.cli.main import main

if __name__ == "__main__":
    main()
