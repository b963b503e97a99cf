"""The program: kernels in order, over buffers with planned addresses."""
