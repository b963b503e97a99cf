"""HTTP: the Open Inference Protocol, the OpenAI-compatible endpoints, metrics and status."""
