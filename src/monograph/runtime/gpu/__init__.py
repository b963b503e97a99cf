"""Running programs on GPUs: memory, compiled kernels, launches. Needs the extra `gpu`."""
