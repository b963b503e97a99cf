"""Executables whose shapes data decide: staged programs and host loops."""
