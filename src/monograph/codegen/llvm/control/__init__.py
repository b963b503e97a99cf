"""CPU kernels of branches and loops, and the sub-programs that they run."""
