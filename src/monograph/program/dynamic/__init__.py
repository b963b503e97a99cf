"""Sizes and branches that data decide: bounded buffers, padded rows, stages."""
