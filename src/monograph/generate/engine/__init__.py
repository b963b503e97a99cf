"""Execution of decoding steps: sequences, buckets, samplers, state arrays."""
