"""Executables and targets: feeds, memory, launches."""
