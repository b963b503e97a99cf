"""Building blocks of CPU kernels: LLVM text, scalars, elements, loops, epilogues."""
