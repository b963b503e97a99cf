"""Algebraic rules, one family a file."""
