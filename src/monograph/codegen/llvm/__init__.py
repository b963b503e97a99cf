"""CPU kernels, generated as LLVM IR."""
