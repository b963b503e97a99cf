"""Benchmarks, and the models that they make. What they time is not checked, as for users."""

import os

# Tools of the tests, which some benchmarks use, ask for checked code where this is not set.
os.environ.setdefault("MONOGRAPH_CHECKED", "0")
