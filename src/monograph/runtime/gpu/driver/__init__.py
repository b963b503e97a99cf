"""Devices: discovery, streams, CUDA and HIP calls, the graph API."""
