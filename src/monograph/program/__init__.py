"""The linear IR: kernels in order, over buffers whose places in memory are planned."""
