"""Code generation: a Program becomes native functions."""
