"""Steps that are launched together, and what splits them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.codegen.triton.module.select import GpuTarget
from monograph.errors import VerifyError
from monograph.ir import Graph, Input, Value, constant, tensor, unpack
from monograph.ir.dtype import boolean, f32, i64, string
from monograph.ops.cast import Cast
from monograph.ops.control import If, Loop, Scan
from monograph.ops.elementwise import Less, Neg
from monograph.ops.linear import Dot
from monograph.program.launch_regions import (
    NO_CONDITIONS,
    GraphStep,
    HostStep,
    SplitAtHost,
    summary,
)
from monograph.program.lowering import lower
from monograph.program.program import Program
from monograph.runtime.cpu.executable import compile_graph
from tests.rules.checks import graph_of, value

WEIGHTS = np.full((16, 16), 0.5, np.float32)


def dotted(x: Value) -> Value:
    return Dot()(x, constant(WEIGHTS))


def through_text(x: Value) -> Value:
    """Numbers written and read: only the host knows text."""
    return Cast(f32)(Cast(string)(x))


def on_gpu(*outputs: Value, conditional_nodes: bool = True) -> Program:
    program = lower(graph_of(*outputs), GpuTarget()).whole
    return SplitAtHost(conditional_nodes=conditional_nodes).run(program)


def kinds(program: Program) -> list[str]:
    return [type(x).__name__ + str(len(x.steps)) for x in program.launches]


def body(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")


def given(name: str) -> Value:
    return Input(name, tensor(f32, 4, 16))()


def branch() -> Value:
    x, y = given("x"), given("y")
    decided = If(body((x,), Neg()(x)), body((y,), dotted(y)))
    return unpack(decided(value("bool[]", "c"), value("f32[4, 16]"), value("f32[4, 16]", "z")))[0]


def loop() -> Value:
    number, go, state = Input("i", tensor(i64))(), Input("go", tensor(boolean))(), given("s")
    going = Less()(number, constant(np.array(5)))
    looped = Loop(body((number, go, state), going, dotted(state)), 1)
    trips, begin = value("i64[]", "n"), constant(np.array(True))
    return unpack(looped(trips, begin, value("f32[4, 16]")))[0]


def test_a_model_without_host_steps_is_one_region() -> None:
    program = on_gpu(dotted(dotted(value("f32[4, 16]"))))
    assert kinds(program) == ["GraphStep2"]
    assert summary(program.launches) == "1 region, 2 kernels; no host steps"
    assert " region of 2 steps (0-1)\n  0: " in str(program)


def test_a_host_step_splits_what_is_around_it() -> None:
    program = on_gpu(dotted(through_text(dotted(value("f32[4, 16]")))))
    assert kinds(program) == ["GraphStep1", "HostStep1", "HostStep1", "GraphStep1"]
    assert [x.reason for x in program.launches if isinstance(x, HostStep)] == ["strings"] * 2
    text = summary(program.launches)
    assert text.startswith("2 regions, 2 kernels; 2 host steps (strings: cast, cast"), text
    assert " on the host, strings: cast\n" in str(program)


def test_work_beside_a_host_step_stays_in_its_region() -> None:
    x = value("f32[4, 16]")
    program = on_gpu(through_text(x), dotted(x))
    assert sum(isinstance(r, GraphStep) for r in program.launches) == 1


@pytest.mark.parametrize("decided", [branch, loop])
def test_a_condition_splits_only_without_conditional_nodes(decided: object) -> None:
    assert callable(decided)
    result = dotted(decided())
    assert kinds(on_gpu(result)) == ["GraphStep2"]
    split = on_gpu(result, conditional_nodes=False)
    assert kinds(split) == ["HostStep1", "GraphStep1"]
    assert split.launches[0] == HostStep(split.steps[0], NO_CONDITIONS)
    assert NO_CONDITIONS in summary(split.launches)
    assert split.launches[1] == GraphStep(split.steps[1:])


def test_what_a_target_left_to_the_host_stays_there() -> None:
    program = lower(graph_of(dotted(dotted(value("f32[4, 16]")))), CpuTarget()).whole
    chosen = program.steps[1].region
    split = SplitAtHost(lambda r: "so it is" if r is chosen else "").run(program)
    assert isinstance(split.launches[1], HostStep)


def test_a_scan_is_counted_beforehand_unless_a_branch_is_in_it() -> None:
    s, x, c = given("s"), given("x"), Input("c", tensor(boolean))()
    plain = Scan(body((s, x), dotted(s)), (0,), (False,), (), ())
    scan = unpack(plain(value("f32[4, 16]"), value("f32[9, 4, 16]", "z")))[0]
    assert kinds(on_gpu(scan, conditional_nodes=False)) == ["GraphStep1"]
    a, b = given("a"), given("b")
    chosen = unpack(If(body((a,), Neg()(a)), body((b,), dotted(b)))(c, s, s))[0]
    inner = Scan(body((s, x, c), chosen), (0,), (False,), (), ())
    scan = unpack(inner(value("f32[4, 16]"), value("f32[9, 4, 16]", "z"), value("bool[]", "k")))[0]
    assert kinds(on_gpu(scan, conditional_nodes=False)) == ["HostStep1"]


def test_the_cpu_calls_one_native_function_for_each_region() -> None:
    graph = graph_of(dotted(through_text(dotted(value("f32[4, 16]")))))
    executable = compile_graph(graph, host_features(), 1)
    regions = [x for x in executable.program.launches if isinstance(x, GraphStep)]
    assert len(regions) == executable.launches == 2
    assert [x.step for x in executable.program.launches if isinstance(x, HostStep)] == list(
        executable.host_steps
    )


def test_the_cpu_decides_conditions_in_its_native_function() -> None:
    program = lower(graph_of(dotted(branch())), CpuTarget()).whole
    assert kinds(SplitAtHost(CpuTarget().host_reason).run(program)) == ["GraphStep2"]


def test_an_empty_program_has_no_regions() -> None:
    assert SplitAtHost().run(lower(Graph((), ()), GpuTarget()).whole).launches == ()


def test_regions_that_are_wrong_are_refused() -> None:
    program = on_gpu(dotted(through_text(dotted(value("f32[4, 16]")))))
    first, text, _, last = program.launches
    steps = program.steps
    wrong = {
        "once and in order": (first, text, last),
        "in order": (text, first, *program.launches[2:]),
        "must not hold a host step": (GraphStep(steps),),
        "must have a reason": (HostStep(steps[0], "so"), *program.launches[1:]),
        "must have steps": (first, GraphStep(()), *program.launches[1:]),
    }
    for words, launches in wrong.items():
        with pytest.raises(VerifyError, match=words):
            SplitAtHost().verify(replace(program, launches=launches))
    plain = on_gpu(dotted(dotted(value("f32[4, 16]"))))
    halves = tuple(GraphStep((s,)) for s in plain.steps)
    with pytest.raises(VerifyError, match="must have a host step between them"):
        SplitAtHost().verify(replace(plain, launches=halves))
