"""The kernel of a step of decoding, for caches that are views or made by other kernels."""

from __future__ import annotations

import pytest

from monograph.codegen.triton.attention import decode_step
from monograph.codegen.triton.module.kernel import GpuContext
from monograph.codegen.triton.module.launch import Arch, Launch
from monograph.runtime.gpu.executable import lower_for_gpu
from tests.cpu.attention.viewed_caches import MADE, donated_view, some, viewed
from tests.gpu.against import check


@pytest.mark.parametrize("name", MADE)
def test_caches_that_are_no_inputs(name: str) -> None:
    graph = viewed(name)
    check(graph, some(graph, [7, 19]))


def test_a_view_of_a_donated_input() -> None:
    """It is read at other places than it is written at: only the other cache stays in place."""
    graph = donated_view()
    assert lower_for_gpu(graph).donated == {"y2": "values"}
    check(graph, some(graph, [1]))


def test_a_cache_that_a_kernel_makes_is_waited_for() -> None:
    """It is not there yet when the kernels in front have not ended."""
    program = lower_for_gpu(viewed("computed"))
    own = next(s for s in program.steps if s.region.kind == "decode_attention")
    assert any(s.region.kind in decode_step.BARRIERS for s in program.steps)
    works = decode_step.candidates(GpuContext(program, own, Arch("cuda", "sm_90")))[0].make()
    launch = works[-1]
    assert isinstance(launch, Launch)
    assert "tl.load" not in launch.source.split("gdc_wait()")[0]
