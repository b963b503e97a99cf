"""Building blocks of GPU kernels: Triton text, scalars, elements, tiles."""
