"""CPU kernels of convolutions: direct, grouped, depthwise, Winograd, int8, and the general form."""
