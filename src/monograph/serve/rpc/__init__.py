"""gRPC: the Open Inference Protocol with Triton's extensions, and the health service."""
