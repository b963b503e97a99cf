"""Compares ops of the com.microsoft domain with ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.nodes import Given, close, run_node, runtime_node

F32 = 2e-5
"""Sums of at most 64 products of numbers below 4: about 64 * 2^-24 * 4 on their scale."""


def data(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Numbers that differ from one shape and seed to the next."""
    generator = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max + 1, shape).astype(dtype)


def microsoft(op: str, *inputs: Given, **options: Any) -> list[list[np.ndarray]]:
    """[ours, theirs] for one node."""
    options = {"domain": "com.microsoft", "opset": 1, **options}
    return [run(op, *inputs, **options) for run in (run_node, runtime_node)]


def agree(op: str, *inputs: Given, tolerance: float = F32, **options: Any) -> None:
    ours, theirs = microsoft(op, *inputs, **options)
    close(ours, theirs, tolerance)


def agree_within_a_step(op: str, *inputs: Given, **options: Any) -> None:
    """Quantised results: where a value lies between two steps either may be taken."""
    (ours,), (theirs,) = microsoft(op, *inputs, **options)
    assert ours.dtype == theirs.dtype
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).sum() <= max(1, 0.02 * difference.size)
