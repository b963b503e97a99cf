"""Tests of `monograph.from_torch` and of the backend of `torch.compile`; `make test-torch`."""
