"""CPU kernels that compute addresses: gather, scatter, pad, and elements made from their index."""
