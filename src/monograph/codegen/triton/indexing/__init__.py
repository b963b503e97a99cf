"""GPU kernels that compute addresses: gather, scatter, copies, elements made from their index."""
