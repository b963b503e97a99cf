"""A Program as launches: kernel selection, memory layout, memory effects."""
