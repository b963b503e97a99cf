"""Serving: one process that answers requests for models over HTTP and gRPC."""
