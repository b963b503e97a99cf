"""GPU kernels along rows: reductions, softmax, norms, scans, and their tiling."""
