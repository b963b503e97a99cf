"""Hooks of tests run during captures, and a hook that did not run is reported."""

from __future__ import annotations

import pytest

from tests.gpu.faults.misbehaving import hook, kernels_of
from tests.gpu.faults.rig import KINDS, ON_DEVICE, Rig, fault

FOREIGN = ("library", "decided")
"""Kinds of models that libraries take part in. Of others no stream need record a kernel."""


def records(rig: Rig) -> bool:
    """Tell whether any stream records."""
    if not ON_DEVICE:
        return bool(rig.driver._recording)
    inner = rig.graphs.inner
    return any(inner.capturing(int(s.value)) for s in (*inner._streams, *inner._inner))


@pytest.mark.parametrize("kind", [*KINDS, "decided"])
@fault
def test_it_happens_while_a_stream_records(rig: Rig, kind: str) -> None:
    """Not when a library's launches are tried before that, nor in the middle of an eager run."""
    for number in range(len(kernels_of(rig.running(kind)))):
        case = rig.case(kind)
        seen: list[bool] = []
        hook(case.replay, number, lambda seen=seen: seen.append(records(rig)))  # type: ignore[misc]
        case.check()
        assert seen == [not rig.builds or kind in FOREIGN]
        assert case.stats["captures"] == 1
        rig.graphs.well()


@pytest.mark.parametrize("kind", ["model", "library"])
def test_what_happens_during_no_capture_is_told(rig: Rig, kind: str) -> None:
    @fault
    def eager(rig: Rig) -> None:
        case = rig.case(kind, "off")
        hook(case.replay, 0, lambda: None)
        case.check()

    with pytest.raises(AssertionError, match="happened during no capture"):
        eager(rig)
    rig.graphs.well()
