"""CPU kernels of matrix products: f32, int8, and weights of few bits."""
