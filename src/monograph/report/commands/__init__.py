"""The work of each command of the command line."""
