"""The pass that chooses the order of dimensions, and the layout behaviour of each op."""
