"""Kernels with barriers are cut where every path crosses the barrier once, and only there."""

from __future__ import annotations

import pytest

from monograph.codegen.llvm.module.kernel import NAME, Kernel
from monograph.codegen.llvm.module.phases import meets, phases

HEAD = f"define void @{NAME}(ptr %p0, ptr %p1, i64 %tid) nounwind {{"
BARRIER = "  call void @barrier(ptr %p1, i64 2)"


def kernel(*body: str) -> Kernel:
    return Kernel("\n".join([HEAD, *body, "}", ""]), (), frozenset())


def pieces(*body: str) -> list[list[str]]:
    """The lines of each piece, without its head."""
    return [k.text.splitlines()[1:-1] for k in phases(kernel(*body))]


STORE = ("  %at = getelementptr i8, ptr %p0, i64 %tid", "  store i8 1, ptr %at")
LOAD = ("  %x = load i8, ptr %at", "  store i8 %x, ptr %p0")


def test_a_kernel_without_a_barrier_stays_whole() -> None:
    whole = kernel("entry:", *STORE, "  ret void")
    assert phases(whole) == [whole]


def test_addresses_are_computed_again() -> None:
    first, second = pieces("entry:", *STORE, BARRIER, *LOAD, "  ret void")
    assert first == ["entry:", *STORE, "  ret void"]
    assert second == [
        "entry:",
        STORE[0],
        "  br label %after.barrier",
        "after.barrier:",
        *LOAD,
        "  ret void",
    ]


def test_two_barriers_make_three_pieces() -> None:
    found = pieces("entry:", *STORE, BARRIER, *LOAD, BARRIER, "  store i8 2, ptr %at", "  ret void")
    assert [p[-2:] for p in found] == [
        [STORE[1], "  ret void"],
        [LOAD[1], "  ret void"],
        ["  store i8 2, ptr %at", "  ret void"],
    ]


LOOP = (
    "entry:",
    "  br label %loop",
    "loop:",
    "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
    "  %next = add i64 %i, 1",
    "  %more = icmp slt i64 %next, 9",
    "  br i1 %more, label %loop, label %done",
    "done:",
)


def test_a_loop_before_the_barrier_and_one_behind_it() -> None:
    again = [line.replace("loop", "again").replace("done", "end") for line in LOOP[2:]]
    again = [line.replace("%entry", "%done").replace("%next", "%n") for line in again]
    first, second = pieces(
        *LOOP, BARRIER, "  br label %again", *(x.replace("%i", "%k") for x in again), "  ret void"
    )
    assert first == [*LOOP, "  ret void"]
    assert "  %k = phi i64 [ 0, %after.barrier ], [ %n, %again ]" in second
    assert not any("%loop" in line for line in second)


@pytest.mark.parametrize(
    "body",
    [
        # In a loop.
        (*LOOP[:4], BARRIER, *LOOP[4:], "  ret void"),
        # On one of two paths.
        (
            "entry:",
            "  %first = icmp eq i64 %tid, 0",
            "  br i1 %first, label %one, label %done",
            "one:",
            BARRIER,
            "  br label %done",
            "done:",
            "  ret void",
        ),
        # What was read before the barrier may be another number behind it.
        ("entry:", "  %x = load i8, ptr %p0", BARRIER, "  store i8 %x, ptr %p1", "  ret void"),
        # The result of a loop.
        (*LOOP, BARRIER, "  store i64 %i, ptr %p0", "  ret void"),
        # Memory of the function's own.
        ("entry:", "  %own = alloca i64", BARRIER, "  store i64 0, ptr %own", "  ret void"),
    ],
)
def test_what_cannot_be_cut_stays_whole(body: tuple[str, ...]) -> None:
    whole = kernel(*body)
    assert phases(whole) == [whole]
    assert meets(whole)
