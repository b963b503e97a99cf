"""GPU kernels of convolutions, and the library calls that compete with them."""
