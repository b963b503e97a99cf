"""CPU kernels of single ops: determinants, n-grams, random numbers."""
