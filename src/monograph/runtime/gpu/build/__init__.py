"""Kernel builds: compilation in worker processes, binary cache, tuner, tuning cache."""
