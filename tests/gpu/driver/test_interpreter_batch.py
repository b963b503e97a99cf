"""Batches of interpreted programs give what Triton's interpreter gives, with less work."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton does not interpret here"
)

HEAD = "@triton.jit\ndef KERNEL(x, y):\n    p = tl.program_id(0)\n    i = tl.arange(0, 8)\n"
PRODUCT = "@triton.jit\ndef product(a, b):\n    return a * b\n\n\n"
FIRST = "@triton.jit\ndef larger(a, i, b, j):\n    keep = a >= b\n" + (
    "    return tl.where(keep, a, b), tl.where(keep, i, j)\n\n\n"
)
READ = "    v = tl.load(x + p * 8 + i)\n"
WRITE = "    tl.store(y + p * 8 + i, v)\n"
TILE = "    r = tl.arange(0, 4)\n    t = tl.load(x + r[:, None] * 8 + i[None, :] + p)\n"
BODIES = {
    "elementwise": READ + "    v = tl.exp(v) * 2 + p\n" + WRITE,
    "masked": "    v = tl.load(x + p * 8 + i, mask=i < p, other=-1.0)\n" + WRITE,
    "same in all programs": "    v = tl.load(x + i) + 0 * p\n" + WRITE,
    "sum": READ + "    v = v - tl.sum(v, 0)\n" + WRITE,
    "maximum": READ + "    v = v - tl.max(v, axis=0)\n" + WRITE,
    "place of the maximum": READ + "    v += tl.argmax(v, 0)\n" + WRITE,
    "all elements": TILE + "    v = i * tl.sum(t) + tl.min(t)\n" + WRITE,
    "rows": TILE + "    v = tl.sum(t, 0) + tl.max(tl.sum(t, 1, keep_dims=True))\n" + WRITE,
    "own reduction": READ + "    v = v * tl.reduce(v, 0, product)\n" + WRITE,
    "own pair": READ + "    a, k = tl.reduce((v, i), 0, larger)\n    v = a + k + v\n" + WRITE,
    "cumulative": READ + "    v = tl.cumsum(v, 0, reverse=True)\n" + WRITE,
    "own scan": READ + "    v = tl.associative_scan(v, 0, product)\n" + WRITE,
    "dot": TILE + "    v = tl.sum(tl.dot(t, tl.trans(t), input_precision='ieee'))+i\n" + WRITE,
    "shapes": READ + "    a, b = tl.split(tl.reshape(v, (4, 2)))\n"
    "    v = tl.reshape(tl.trans(tl.join(b, a + p)), (8,))\n" + WRITE,
    "transposed": TILE + "    v = tl.sum(t.T, 1)\n" + WRITE,
    "scalars": "    v = i * tl.load(x + p) + (p // 3) % 2 - (-p)\n" + WRITE,
    "branch": READ + "    if p % 3 == 0:\n        v = v * 2\n" + WRITE,
    "branch behind a store": READ + WRITE + "    if tl.load(x + p * 8) > 0:\n        v = v - 100\n"
    "        tl.store(y + p * 8 + i, v)\n",
    "loop": READ + "    for k in range(p % 4):\n        v += k\n" + WRITE,
    "data decide": READ + "    while tl.max(v, 0) < 10:\n        v = v * 2 + 1\n" + WRITE,
    "counter": READ + "    before = tl.atomic_add(y + 160, 1)\n    v = v + 0 * before\n" + WRITE,
    "last program": READ + WRITE + "    before = tl.atomic_add(y + 160, 1)\n"
    "    if before == 19:\n        tl.store(y + 161, tl.sum(tl.load(y + i * 8)))\n",
}


def kernel(name: str) -> Any:
    from monograph.runtime.gpu.build.compiler import function

    return function(PRODUCT + FIRST + HEAD + BODIES[name], name.replace(" ", "_"))


def arrays() -> tuple[torch.Tensor, torch.Tensor]:
    data = np.random.default_rng(3).standard_normal(200).astype(np.float32)
    return torch.from_numpy(data), torch.zeros(170)


@pytest.mark.parametrize("name", [n for n in BODIES if n != "loop"])
def test_batches_give_what_single_programs_give(name: str) -> None:
    from monograph.runtime.gpu.driver.interpreter_batch import Grid

    made, (x, right), (_, given) = kernel(name), arrays(), arrays()
    made[(20,)](x, right)
    Grid(made, (20,))(x, given)
    assert right.abs().sum() > 0
    np.testing.assert_array_equal(given.numpy(), right.numpy())


def test_a_loop_whose_length_differs_among_programs() -> None:
    # Older versions of Triton's interpreter do not take such a length.
    from monograph.runtime.gpu.driver.interpreter_batch import Grid

    x, given = arrays()
    Grid(kernel("loop"), (20,))(x, given)
    added = np.arange(20) % 4 * (np.arange(20) % 4 - 1) // 2
    right = x.numpy()[:160].reshape(20, 8) + added[:, None]
    np.testing.assert_allclose(given.numpy()[:160].reshape(20, 8), right, rtol=1e-6)


def counted(name: str, grid: tuple[int, ...]) -> list[int]:
    """Return how many programs each execution of a kernel has."""
    from monograph.runtime.gpu.driver import interpreter_batch

    sizes = []

    class Counted(interpreter_batch.Grid):
        def _run(self, builder: Any, body: Any, given: Any, programs: Any) -> int:
            sizes.append(programs.shape[1])
            return super()._run(builder, body, given, programs)

    run = Counted(kernel(name), grid)
    run(*arrays())
    run(*arrays())
    return sizes


def test_programs_that_agree_run_at_once() -> None:
    assert counted("elementwise", (20,)) == [16, 4] * 2
    assert counted("elementwise", (2, 5)) == [10] * 2


def test_programs_that_disagree_run_in_groups() -> None:
    assert counted("branch", (12,)) == [12, 4, 8] * 2


def test_a_kernel_whose_programs_all_disagree_is_not_batched_again() -> None:
    sizes = counted("loop", (4,))
    assert sizes == [4, 1, 1, 1, 1] + [1] * 4


def test_language_is_as_it_was_afterwards() -> None:
    import triton.language as tl

    from monograph.runtime.gpu.driver.interpreter_batch import Grid

    before = tl.load, tl.core.reduce, tl.tensor.__dict__.get("__bool__"), tl.tensor.__add__
    Grid(kernel("rows"), (3,))(*arrays())
    after = tl.load, tl.core.reduce, tl.tensor.__dict__.get("__bool__"), tl.tensor.__add__
    assert before == after
    with pytest.raises(Exception, match="NoneType"):
        Grid(kernel("rows"), (3,))(None, None)
    assert tl.load is before[0]


def test_functions_of_a_scalar_and_a_block() -> None:
    from monograph.runtime.gpu.build.compiler import function
    from monograph.runtime.gpu.driver.interpreter_batch import Grid

    body = "    v = functions.pow(tl.load(x + i), p.to(tl.float32))\n" + WRITE
    x, given = torch.arange(200.0), torch.zeros(170)
    Grid(function(HEAD + body, "pow"), (8,))(x, given)
    right = np.arange(8.0)[None] ** np.arange(8.0)[:, None]
    np.testing.assert_allclose(given.numpy()[:64].reshape(8, 8), right, rtol=1e-6)
