"""The CPU target's executables, launches, native code and thread pool."""
