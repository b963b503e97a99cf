"""What stands between a session and its executables: feeds, memory, launches."""
