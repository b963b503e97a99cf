"""CPU kernels of recurrent cells."""
