"""GPU kernels of matrix products: tiles, GEMV, weights of few bits, split-K, library calls."""
