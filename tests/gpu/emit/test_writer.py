"""The text of a kernel: expressions are computed once, and anew when their variables change."""

from __future__ import annotations

import pytest

from monograph.codegen.triton.emit.writer import Writer


def text(w: Writer) -> list[str]:
    return [line.strip() for line in w.lines]


def test_an_expression_is_computed_once() -> None:
    w = Writer()
    w.line("acc = 0")
    assert w.let("acc * 2") == w.let("acc * 2")
    assert text(w) == ["acc = 0", "v1 = acc * 2"]


@pytest.mark.parametrize(
    "line", ["acc = x + 1", "acc += 1", "acc |= x", "acc, rest = x", "a, acc = x"]
)
def test_a_new_value_makes_what_was_computed_from_the_old_one_unknown(line: str) -> None:
    w = Writer()
    old, other = w.let("acc * 2"), w.let("accent * 2")
    w.line(line)
    assert w.let("acc * 2") != old
    assert w.let("accent * 2") == other


def test_a_store_or_a_comparison_gives_no_variable_a_value() -> None:
    w = Writer()
    old = w.let("x * 2")
    w.line("tl.store(p + x, x, mask=x)")
    with w.block("if x == 3"):
        w.line("tl.store(p, x)")
    assert w.let("x * 2") == old


def test_a_block_may_give_a_new_value() -> None:
    w = Writer()
    old = w.let("acc * 2")
    with w.block("for k in range(4)"):
        w.assign("acc", "acc + k")
        inner = w.let("acc * 2")
    assert len({old, inner, w.let("acc * 2")}) == 3


@pytest.mark.parametrize("head", ["for k in range(4)", "while going"])
def test_a_loop_may_not_use_what_its_later_turns_change(head: str) -> None:
    def loop() -> None:
        w = Writer()
        w.let("acc * 2")
        with w.block(head), w.block("if k"):
            w.line(f"x = {w.let('acc * 2')}")
            w.line("acc = x + 1")

    with pytest.raises(AssertionError, match=r"would see the first one's acc \* 2"):
        loop()
