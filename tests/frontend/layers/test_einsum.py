"""Einsum against numpy: every form of equation, static and symbolic."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ModelError
from tests.frontend.nodes import run_node

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("i->", [(3,)]),
        ("ij->ji", [(2, 3)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("iji->j", [(3, 2, 3)]),
        ("iiijj->ij", [(2, 2, 2, 3, 3)]),
        ("...ii->...i", [(2, 4, 3, 3)]),
        ("i,i", [(3,), (3,)]),
        ("i,j", [(3,), (2,)]),
        ("i,j->ji", [(3,), (2,)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("ijk,jil->kl", [(2, 3, 4), (3, 2, 5)]),
        ("ij,kl->", [(2, 3), (4, 5)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,k->ik", [(2, 3), (4,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
        ("...ij,...jk", [(5, 1, 2, 3), (4, 3, 2)]),
        ("i...,i...->...", [(3, 2, 4), (3, 2, 4)]),
        ("a,b,c->cab", [(2,), (3,), (4,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,jk,ik->", [(2, 3), (3, 4), (2, 4)]),
        ("Ab, bC -> CA", [(2, 3), (3, 4)]),
    ],
)
def test_against_numpy(equation: str, shapes: list[tuple[int, ...]], symbolic: bool) -> None:
    arrays = [RANDOM.normal(size=s).astype(np.float32) for s in shapes]
    (ours,) = run_node("Einsum", *arrays, equation=equation, symbolic=symbolic)
    expected = np.einsum(equation, *arrays)
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_named_dimension_of_one_broadcasts() -> None:
    x, y = np.ones((2, 1), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert run_node("Einsum", x, y, equation="ij,ij->i")[0].tolist() == [3, 12]
    assert run_node("Einsum", x, y, equation="ij,ij->ij")[0].tolist() == y.tolist()


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij", "one term for each input"),
        ("ij,jk->iz", "and in an input"),
        ("ij,jk->ii", "must occur once"),
        ("ijk,jk", "one label for each dimension"),
        ("i,jk", "one label for each dimension"),
        ("i1,jk", "letters"),
        ("i......j,jk", "letters"),
        ("ij,ik->jk", "differ"),
    ],
)
def test_equations_that_cannot_be(equation: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run_node("Einsum", np.ones((2, 3)), np.ones((3, 4)), equation=equation)
