"""A Program as native functions: kernel selection, features, constants, barriers, time stamps."""
