"""MatMul, Gemm, Det and AffineGrid against numpy and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ModelError
from tests.frontend.nodes import close, run_node, runtime_node

RANDOM = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((2, 1, 4, 3), (5, 3, 2)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], symbolic: bool) -> None:
    x, y = normal(*a), normal(*b)
    ours = run_node("MatMul", x, y, symbolic=symbolic)
    close(ours, [np.asarray(np.matmul(x, y))], 1e-5)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("c", [None, (), (4,), (3, 1), (3, 4)])
@pytest.mark.parametrize(("ta", "tb"), [(0, 0), (1, 1)])
def test_gemm(c: tuple[int, ...] | None, ta: int, tb: int, symbolic: bool) -> None:
    a, b = normal(3, 2), normal(2, 4)
    bias = None if c is None else normal(*c)
    expected = np.float32(0.5) * (a @ b) + (0 if bias is None else np.float32(2) * bias)
    ways = {"alpha": 0.5, "beta": 2.0, "transA": ta, "transB": tb, "symbolic": symbolic}
    ours = run_node("Gemm", a.T if ta else a, b.T if tb else b, bias, **ways)
    close(ours, [expected.astype(np.float32)], 1e-5)


def test_gemm_of_integers_and_old_opsets() -> None:
    a = np.arange(6, dtype=np.int32).reshape(2, 3)
    (result,) = run_node("Gemm", a, a.T.copy(), np.ones(2, np.int32))
    assert result.tolist() == (a @ a.T + 1).tolist()
    x = normal(2, 2)
    (old,) = run_node("Gemm", x, x, x[0], opset=6, broadcast=1)
    np.testing.assert_allclose(old, x @ x + x[0], rtol=1e-5)


def test_gemm_is_of_matrices() -> None:
    with pytest.raises(ModelError, match="rank 2"):
        run_node("Gemm", normal(2, 2, 2), normal(2, 2))


def test_det() -> None:
    x = normal(4, 3, 3)
    close(run_node("Det", x, symbolic=True), [np.linalg.det(x)], 1e-5)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 2, 4, 3)])
def test_affine_grid_against_the_runtime(aligned: int, size: tuple[int, ...]) -> None:
    spatial = len(size) - 2
    theta, sizes = normal(2, spatial, spatial + 1), np.array(size)
    theirs = runtime_node("AffineGrid", theta, sizes, align_corners=aligned)
    for ways in ({"constant": [1]}, {}):
        close(run_node("AffineGrid", theta, sizes, align_corners=aligned, **ways), theirs, 1e-5)
