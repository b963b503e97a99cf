"""Real architectures by both entries, beside torch's own results."""

from __future__ import annotations

from typing import Any

import pytest

import monograph
from tests.from_torch.architectures import ARCHITECTURES, Architecture, need

BATCHES = (2, 3)
"""The size of the examples, and another one."""


def made(name: str) -> tuple[Architecture, Any]:
    import torch

    architecture = ARCHITECTURES[name]
    need(architecture.package)
    module = architecture.make().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.abs().max() == 0:  # else some models return zeros
                parameter.normal_(std=0.1)
    return architecture, module


def compare(given: Any, expected: Any) -> None:
    """Hold results to torch's: same structure, and each element within its tensor's roundings."""
    import torch
    from torch.utils import _pytree as pytree

    ours, our_tree = pytree.tree_flatten(given)
    theirs, tree = pytree.tree_flatten(expected)
    assert our_tree == tree
    assert any(isinstance(x, torch.Tensor) for x in theirs)
    for a, b in zip(ours, theirs, strict=True):
        scale = float(b.abs().max())
        assert scale > 0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_from_torch_computes_what_torch_does(name: str) -> None:
    import torch

    architecture, module = made(name)
    examples = architecture.arguments(BATCHES[0])
    batch = torch.export.Dim("batch", min=2, max=64)
    model = monograph.from_torch(module, examples, dynamic_shapes={n: {0: batch} for n in examples})
    assert [p.name for p in model.session.inputs] == list(examples)
    for size in BATCHES:
        arguments = architecture.arguments(size)
        with torch.no_grad():
            compare(model(**arguments), module(**arguments))
    assert model.session.stats["host_steps"] == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_torch_compile_computes_what_torch_does(name: str) -> None:
    import torch

    from monograph.compat.torch.counters import stats

    architecture, module = made(name)
    compiled = torch.compile(module, backend="monograph", dynamic=True)
    with torch.no_grad():
        for size in BATCHES:
            arguments = architecture.arguments(size)
            compare(compiled(**arguments), module(**arguments))
    counted = stats()
    assert counted["eager_runs"] == 0, counted["eager_reasons"]
    assert counted["runs"] >= len(BATCHES)
