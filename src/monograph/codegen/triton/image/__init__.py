"""GPU kernels on images: pooling, resizing, regions of interest, grid sampling."""
