"""Runs of decoding steps: sequences, buckets of lengths, samplers, state arrays."""
