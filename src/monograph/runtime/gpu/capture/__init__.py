"""Captured graphs: capture, pointer parameters, replay, partial graphs, eager runs."""
