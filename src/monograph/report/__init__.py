"""The work of the commands, and the form of their results."""
