"""GPU kernels of single ops: determinants, trees, n-grams, random numbers."""
