"""Rewrites of a graph into ops that kernels exist for."""
