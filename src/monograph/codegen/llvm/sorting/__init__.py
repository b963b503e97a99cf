"""CPU kernels that order or select: top-k, unique, nonzero, non-maximum suppression."""
