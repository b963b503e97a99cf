"""Objects of the driver: freed once, by their owner, and by nobody when the process ends."""

from __future__ import annotations

import gc

from monograph.runtime.gpu.driver.graphs import Handle


def test_what_was_made_is_freed_once() -> None:
    freed: list[int] = []
    handle = Handle(7, freed.append)
    assert not handle.closed
    handle.close()
    handle.close()
    assert handle.closed
    Handle(8, freed.append)
    gc.collect()
    assert freed == [7, 8]


def test_nothing_is_freed_when_the_process_ends() -> None:
    """The driver may be gone by then: a call into it would crash."""
    handle = Handle(7, lambda _: None)
    assert handle._end.alive
    assert not handle._end.atexit
