"""Tables, coupled probabilities and tree tables, on data."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Input, Literal, tensor
from monograph.ir.dtype import dtype, f32, i64
from monograph.ops.ml import CoupleProbabilities, Lookup
from monograph.ops.trees import LEAF, LEQ, TreeEnsemble


def test_lookup_without_a_default_names_what_it_misses() -> None:
    table = Lookup(Literal(np.array([1, 2])), Literal(np.array([10, 20])))
    assert table.reference(np.array([[2, 1]])).tolist() == [[20, 10]]
    with pytest.raises(ExecutionError, match="not in the table") as caught:
        table.reference(np.array([2, 7]))
    assert "7" in str(caught.value)


def test_lookup_in_an_empty_table_gives_the_default() -> None:
    empty = np.zeros(0, np.int64)
    table = Lookup(Literal(empty), Literal(empty), Literal(np.array(-1)))
    assert table.reference(np.array([3, 4])).tolist() == [-1, -1]


WORDS = ["", "a", "ab", "dé", "a long key", "a\0", "x\0y", "日本", "b" * 40]


@pytest.mark.parametrize("out", [np.float32, np.int64, object])
def test_lookup_of_text_of_fixed_width_agrees_with_objects(out: type) -> None:
    values = np.array([str(i) if out is object else i for i in range(len(WORDS))], out)
    table = Lookup(Literal(np.array(WORDS, object)), Literal(values), Literal(values[0]))
    rng = np.random.default_rng(3)
    for width in (1, 2, 5, 12, 32, 33, 64):
        drawn = rng.choice([*WORDS, "A", "zz", "日"], (7, 30)).astype(f"U{width}")
        for x in (drawn, drawn[:, ::3], drawn[:0]):
            found = table.reference(x)
            assert found.dtype == out
            assert np.array_equal(found, table.reference(x.astype(object)))


def test_lookup_of_text_of_fixed_width_names_what_it_misses() -> None:
    words = np.array(["a", "b"], object)
    table = Lookup(Literal(words), Literal(np.array([1, 2])))
    assert table.reference(np.array([["b", "a"]])).tolist() == [[2, 1]]
    with pytest.raises(ExecutionError, match="'other'"):
        table.reference(np.array(["a", "other"]))


def test_the_last_of_equal_keys_counts() -> None:
    keys, values = np.array(["a", "b", "a"], object), np.array([1, 2, 3])
    table = Lookup(Literal(keys), Literal(values), Literal(np.array(-1)))
    for x in (np.array(["a", "b", "c"]), np.array(["a", "b", "c"], object)):
        assert table.reference(x).tolist() == [3, 2, -1]


def test_lookup_checks_its_table() -> None:
    x = Input("x", tensor(i64, 2))()
    keys, values = Literal(np.array([1, 2])), Literal(np.array([1.0, 2.0], np.float32))
    assert str(Lookup(keys, values)(x).type) == "f32[2]"
    with pytest.raises(InferError, match="vectors of one length"):
        Lookup(keys, Literal(np.array([1.0])))(x)
    with pytest.raises(InferError, match="another element type"):
        Lookup(values, keys)(x)
    with pytest.raises(InferError, match="default"):
        Lookup(keys, values, Literal(np.array(1)))(x)


def test_coupling_consistent_pairs_gives_their_probabilities() -> None:
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    pairs = p[:, :, None] / (p[:, :, None] + p[:, None, :])
    # It stops at a change below 0.005 / 3.
    np.testing.assert_allclose(CoupleProbabilities().reference(pairs), p, atol=0.01)


def test_coupling_needs_squares() -> None:
    with pytest.raises(InferError, match="a square for each row"):
        CoupleProbabilities()(Input("x", tensor(f32, 2, 3, 4))())


def table(**changed: object) -> TreeEnsemble:
    """x[0] <= 0 gives 1, otherwise 2."""
    attributes = {
        "roots": [0], "modes": [LEQ, LEAF, LEAF], "features": [0, 0, 0], "splits": [0.0, 0.0, 0.0],
        "yes": [1, 0, 0], "no": [2, 0, 0], "missing_yes": [False, False, False],
        "first_vote": [0, 0, 1, 2], "vote_targets": [0, 0], "vote_weights": [1.0, 2.0],
        "first_member": [0, 0, 0, 0], "members": np.zeros(0),
    }  # fmt: skip
    literals = {k: Literal(np.array(v)) for k, v in (attributes | changed).items()}
    return TreeEnsemble(**literals, targets=1)  # type: ignore[arg-type]


def test_trees_take_rows_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(50, 1)).astype(np.float32)
    whole = table().reference(x)
    monkeypatch.setattr("monograph.ops.trees.CHUNK", 7)
    np.testing.assert_array_equal(table().reference(x), whole)
    np.testing.assert_array_equal(whole, np.where(x <= 0, 1, 2))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"yes": [0, 0, 0]}, "form a circle"),
        ({"no": [3, 0, 0]}, "a branch is out of range"),
        ({"roots": []}, "no tree"),
        ({"splits": [0.0]}, "splits: wrong length"),
        ({"first_vote": [0, 1, 1, 1]}, "votes of the nodes do not partition"),
        ({"first_vote": [0, 2, 1, 2]}, "votes of the nodes do not partition"),
        ({"first_member": [0, 0, 0, 1]}, "members of the nodes do not partition"),
    ],
)
def test_a_malformed_table_is_refused(changed: dict, message: str) -> None:
    with pytest.raises(InferError, match=message):
        table(**changed)(Input("x", tensor(f32, 4, 1))())


def test_trees_take_rows_of_numbers() -> None:
    with pytest.raises(InferError, match="rows of features"):
        table()(Input("x", tensor(f32, 4))())
    with pytest.raises(InferError, match="element type"):
        table()(Input("x", tensor(dtype("str"), 4, 1))())
