"""Runs that were started: what waits for them may be interrupted, and forked."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monograph.errors import ExecutionError
from monograph.runtime.pending import Pending, Worker


def interrupted_once() -> Callable[[], list[Any]]:
    """Return what is interrupted the first time, and gives 3 the second time."""
    turns = itertools.count()

    def finish() -> list[Any]:
        if next(turns) == 0:
            raise KeyboardInterrupt
        return [3]

    return finish


def test_whoever_was_interrupted_while_waiting_may_ask_again() -> None:
    pending = Pending(interrupted_once(), lambda: False, repeatable=True)
    with pytest.raises(KeyboardInterrupt):
        pending.result()
    assert not pending.done()
    assert pending.result() == [3]
    assert pending.result() == [3]
    assert pending.done()


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_runs_are_neither_copied_nor_pickled(way: Callable[[Any], Any]) -> None:
    pending = Pending(lambda: [3], lambda: True)
    with pytest.raises(ExecutionError, match="neither copied nor pickled"):
        way(pending)
    assert pending.result() == [3]


def test_outputs_that_an_interrupt_has_lost_are_not_made_up() -> None:
    pending = Pending(interrupted_once(), lambda: False)
    with pytest.raises(KeyboardInterrupt):
        pending.result()
    for _ in range(2):
        with pytest.raises(ExecutionError, match="interrupted"):
            pending.result()


def test_a_run_that_is_waited_for_is_not_done() -> None:
    waiting, gate = threading.Event(), threading.Event()

    def finish() -> list[Any]:
        waiting.set()
        assert gate.wait(60)
        return [1]

    pending = Pending(finish, gate.is_set)
    other = threading.Thread(target=pending.result)
    other.start()
    assert waiting.wait(60)
    assert not pending.done()
    gate.set()
    other.join(60)
    assert pending.done()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_wait_for_a_run_of_its_parent() -> None:
    gate, worker = threading.Event(), Worker()

    def run() -> list[Any]:
        assert gate.wait(60)
        return [1]

    pending = worker.start(run)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert pending.done()
            pending.result()
        except ExecutionError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    gate.set()
    assert status == 0
    assert pending.result() == [1]
