"""Code generation for GPUs: Triton source, the same text for NVIDIA and AMD."""
