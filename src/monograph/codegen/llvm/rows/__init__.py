"""CPU kernels along rows: reductions, softmax, norms, scans."""
