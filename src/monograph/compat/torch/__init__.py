"""A way in from torch: `monograph.from_torch`, and a backend of `torch.compile`.

torch finds the backend by its entry point; modules in here import torch and are loaded on demand.
"""
