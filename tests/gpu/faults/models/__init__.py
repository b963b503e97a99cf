"""Models of the fault tests."""
