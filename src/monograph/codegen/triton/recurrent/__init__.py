"""GPU kernels of recurrent cells."""
