"""Steps of decoding: caches updated in place, and one kernel for all of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.decoders import build

import monograph
from monograph.codegen.triton.attention import decode_step
from monograph.codegen.triton.attention.flash import FlashTiling
from monograph.codegen.triton.control.subprograms import lowered
from monograph.codegen.triton.module.kernel import Candidate, GpuContext
from monograph.codegen.triton.module.launch import Arch, Launch
from monograph.generate.rewrite.sampling import Sampling
from monograph.ir import Array, Graph, Value, constant, evaluate, unpack
from monograph.ops.attention import LENGTHS, Attention, CacheUpdate, Rope
from monograph.ops.composite import DecodeAttention
from monograph.ops.control import Loop
from monograph.ops.elementwise import Add, Less, Sub
from monograph.ops.reduce import ReduceMax
from monograph.passes.base import Environment, substitute
from monograph.passes.fuse_decoding import FuseDecoding
from monograph.program.dynamic.bounded import graphs_of
from monograph.program.program import Step
from monograph.rewrite import CPU_COST, GPU_COST
from monograph.runtime.gpu.executable import (
    GpuExecutable,
    compile_for_gpu,
    compile_program,
    lower_for_gpu,
)
from tests.cpu.against import feeds_for
from tests.gpu.against import candidate_names, device
from tests.rules.checks import graph_of, value

BATCH, HEADS, GROUPS, SIZE, LENGTH = 2, 4, 2, 16, 50
OLD = {"keys": "past_k", "values": "past_v"}


def step(dtype: str = "f32", queries: int = 1, turned: bool = True, **options: object) -> Graph:
    """Attention to caches that a token has just been added to."""
    q = value(f"{dtype}[{BATCH}, {HEADS}, {queries}, {SIZE}]", "q")
    k, v = (value(f"{dtype}[{BATCH}, {GROUPS}, {queries}, {SIZE}]", n) for n in "kv")
    caches = [value(f"{dtype}[{BATCH}, {GROUPS}, {LENGTH}, {SIZE}]", n) for n in OLD.values()]
    starts, lengths = (value(f"i64[{BATCH}]", n) for n in ("starts", "lengths"))
    cos, sin = (value(f"{dtype}[{BATCH}, {queries}, {SIZE // 2}]", n) for n in ("cos", "sin"))
    if turned:
        q, k = Rope()(q, cos, sin), Rope()(k, cos, sin)
    keys, values = (CacheUpdate(2)(c, x, starts) for c, x in zip(caches, (k, v), strict=True))
    attention = Attention(0.25, True, extra=(LENGTHS,), **options)  # type: ignore[arg-type]
    y = attention(q, keys, values, lengths)
    graph = graph_of(y, keys, values)
    names = ("y", *OLD)
    outputs = tuple((n, x) for n, (_, x) in zip(names, graph.outputs, strict=True))
    return replace(graph, outputs=outputs, donations=tuple(OLD.items()))


def fused(graph: Graph) -> Graph:
    return FuseDecoding().run(graph, Environment(GPU_COST))


def some(graph: Graph, starts: list[int], queries: int = 1) -> dict[str, Array]:
    feeds = feeds_for(graph)
    at = np.array(starts)
    return {**feeds, "starts": at, "lengths": at + queries}


def agree(graph: Graph, feeds: Mapping[str, Array], tolerance: float = 2e-5) -> None:
    """Every candidate, against the reference: the result, and the whole of both caches."""
    expected = evaluate(graph, feeds)
    for number in range(len(candidate_names(graph)[0])):

        def choose(_: object, found: list[Candidate], n: int = number) -> Candidate:
            return found[n % len(found)]

        executable = GpuExecutable(compile_for_gpu(graph, device().arch, choose), device())
        for _ in range(2):  # what a kernel counts with is as it was
            given = executable.run({n: x.copy() for n, x in feeds.items()})
            np.testing.assert_allclose(given[0], expected[0], rtol=tolerance, atol=tolerance)
            for a, b in zip(given[1:], expected[1:], strict=True):
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("starts", [[0, 0], [7, 33], [49, 16]])
def test_one_kernel(starts: list[int]) -> None:
    graph = fused(step())
    assert [v.op.name for v in graph.values if isinstance(v.op, DecodeAttention)]
    program = lower_for_gpu(graph)
    assert len(program.steps) == 1
    assert program.donated == OLD
    agree(graph, some(graph, starts))


def test_half_precision() -> None:
    graph = fused(step("f16"))
    agree(graph, some(graph, [21, 40]), 4e-3)


def test_a_window_and_a_cap() -> None:
    graph = fused(step(window=6, softcap=3.0))
    agree(graph, some(graph, [3, 44]))


@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("split", [1, 2, 3])
def test_programs_of_several_blocks(split: int, window: int) -> None:
    """Each reads the next block of keys while it works on one; the caches hold four of them."""
    graph = fused(step(window=window) if window else step())
    program = lower_for_gpu(graph)
    config = FlashTiling(16, 16, 4, 1, split)

    def choose(own: Step, found: list[Candidate]) -> Candidate:
        context = GpuContext(program, own, device().arch)
        return Candidate(str(config), lambda: decode_step._step(context, config))

    executable = GpuExecutable(compile_program(program, device().arch, choose), device())
    for starts in ([0, 49], [15, 16], [31, 32], [7, 40]):
        feeds = some(graph, starts)
        given = executable.run({n: x.copy() for n, x in feeds.items()})
        for a, b in zip(given, evaluate(graph, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_row_that_sees_no_key() -> None:
    graph = fused(step())
    feeds = some(graph, [7, 33]) | {"lengths": np.array([0, 34])}
    expected = evaluate(graph, feeds)
    assert not expected[0][0].any()
    assert expected[0][1].any()
    agree(graph, feeds)


def kernels_of_a_decoder(folder: Path) -> list[tuple[str, Launch]]:
    """The kernels of a decoder's step, for a device that starts kernels early."""
    build(folder, "tiny-llama", "f16")
    generator = monograph.Generator(folder, "gpu:sm_90", max_length=256, stop=(), cache_dir="")
    engine = generator.engine
    engine.start(1, Sampling())
    feeds = {"tokens": np.zeros((1, 1), np.int64), **engine.state}
    feeds |= {n: np.ones(1, np.int64) for n in ("position", "count")}
    graph = generator.session.optimised_graph(feeds)
    module = compile_for_gpu(graph, Arch("cuda", "sm_90"))
    return [(b.step.region.kind, b.work) for b in module.every if isinstance(b.work, Launch)]


def test_keys_are_read_before_the_wait(tmp_path: Path) -> None:
    """They depend on inputs alone. Nothing is written then, and some kernel in front has waited."""
    made = kernels_of_a_decoder(tmp_path)
    steps = [number for number, (kind, _) in enumerate(made) if kind == "decode_attention"]
    assert len(steps) == 2
    for number in steps:
        early, late = made[number][1].source.split("gdc_wait()")
        assert len(re.findall(r"tl\.load\(p\d+ \+ i", early)) == 2
        assert "tl.store" not in early
        assert "tl.store" in late
        barriers = [w.source for kind, w in made[:number] if kind in decode_step.BARRIERS]
        assert barriers
        assert all(s.index("gdc_wait") < s.index("gdc_launch_dependents") for s in barriers)


def counting(donated: bool) -> Graph:
    """A step that counts its position up: in another place, or where it was."""
    graph = step()
    taken = dict(zip(graph.input_names, graph.inputs, strict=True))
    one, position = constant(np.int64(1)), value(f"i64[{BATCH}]", "position")
    counted = Add()(position, one)
    y, keys, values = (v for _, v in graph.outputs)
    graph = Graph(
        (*(v for n, v in taken.items() if n not in ("starts", "lengths")), position),
        (("y", y), ("keys", keys), ("values", values), ("now", counted)),
        donations=(*OLD.items(), *([("now", "position")] if donated else [])),
    )
    starts = Sub()(counted, one)
    return fused(substitute(graph, {taken["starts"]: starts, taken["lengths"]: counted}))


@pytest.mark.parametrize("donated", [False, True])
def test_a_position_that_is_written_over_is_waited_for(donated: bool) -> None:
    program = lower_for_gpu(counting(donated))
    own = next(s for s in program.steps if s.region.kind == "decode_attention")
    assert ("now" in program.donated) is donated
    works = decode_step.candidates(GpuContext(program, own, Arch("cuda", "sm_90")))[0].make()
    (launch,) = (w for w in works if isinstance(w, Launch))
    assert ("tl.load" in launch.source.split("gdc_wait()")[0]) is not donated
    graph = counting(donated)
    agree(graph, {**feeds_for(graph), "position": np.array([9, 30])})


def test_nothing_is_turned() -> None:
    graph = fused(step(turned=False))
    agree(graph, some(graph, [10, 20]))


def test_fusion_changes_no_numbers() -> None:
    graph = step()
    feeds = some(graph, [5, 31])
    for a, b in zip(evaluate(graph, feeds), evaluate(fused(graph), feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def declined(graph: Graph) -> str:
    environment = Environment(GPU_COST)
    assert FuseDecoding().run(graph, environment) is graph
    (missed,) = environment.trace.nearest("fuse_decoding")
    return missed.reason


def test_why_it_is_not_fused() -> None:
    assert "3 queries" in declined(step(queries=3))
    assert "not donated" in declined(replace(step(), donations=()))
    graph = step()
    y = graph.outputs[0][1]
    apart = Attention(0.25, False, extra=(LENGTHS,))(*y.inputs)
    outputs = (("y", apart), *graph.outputs[1:])
    assert "causal" in declined(replace(graph, outputs=outputs))
    masked = Attention(0.25, True)(*y.inputs[:3])
    outputs = (("y", masked), *graph.outputs[1:])
    wanted = "the sequences have no lengths of their own (expected lengths)"
    assert declined(replace(graph, outputs=outputs)) == wanted
    environment = Environment(CPU_COST)
    assert FuseDecoding().run(graph, environment) is graph
    (missed,) = environment.trace.nearest("fuse_decoding")
    assert missed.reason == "the target has no kernel for a whole decoding step"


def test_only_new_rows_are_written() -> None:
    """A prompt's rows go into the caches where they are: nothing else of them is touched."""
    graph = step(queries=3)
    program = lower_for_gpu(graph)
    updates = [s for s in program.steps if s.region.kind == "cache_update"]
    assert len(updates) == 2
    assert all(program.in_place(s) for s in updates)
    feeds = some(graph, [0, 30], 3)
    expected = evaluate(graph, feeds)
    given = GpuExecutable(compile_for_gpu(graph, device().arch), device()).run(feeds)
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_cache_that_is_not_donated_is_copied() -> None:
    inputs: list[Value] = list(fused(step()).inputs)
    graph = replace(fused(step()), donations=())
    assert graph.inputs == tuple(inputs)
    agree(graph, some(graph, [9, 12]))


def loop_of_steps() -> Graph:
    """Each turn adds a token to the caches and attends to them."""
    inner = step(turned=False)
    taken = dict(zip(inner.input_names, inner.inputs, strict=True))
    y, keys, values = (v for _, v in inner.outputs)
    number, going = value("i64[]", "number"), value("bool[]", "going")
    state = [taken[n] for n in ("past_k", "past_v", "starts", "q")]
    one = constant(np.ones(BATCH, np.int64))
    again = Less()(ReduceMax((0,))(taken["starts"]), constant(np.int64(20)))
    new = [keys, values, Add()(taken["starts"], one), Add()(y, taken["q"])]
    named = [(f"o{i}", v) for i, v in enumerate([again, *new])]
    # How many keys count follows from where the row is written.
    counts = Add()(taken["starts"], one)
    captures = [taken["k"], taken["v"]]
    whole = Graph((number, going, *state, *captures), tuple(named))
    whole = substitute(whole, {y: y.op(*y.inputs[:3], counts)})
    outer = [value(str(v.type), f"in{i}") for i, v in enumerate((*state, *captures))]
    loop = Loop(whole, 4)(constant(np.int64(9)), constant(np.bool_(True)), *outer)
    return graph_of(*unpack(loop))


def test_state_of_a_loop_is_updated_in_place() -> None:
    graph = FuseDecoding().run(loop_of_steps(), Environment(GPU_COST))
    (loop,) = (v for v in graph.values if isinstance(v.op, Loop))
    (body,) = map(lowered, graphs_of(loop))
    assert [s.region.kind for s in body.steps].count("decode_attention") == 1
    assert len(body.donated) >= 2
    rng = np.random.default_rng(3)
    feeds = {
        n: rng.standard_normal(v.tensor.static).astype(np.float32)
        for n, v in zip(graph.input_names, graph.inputs, strict=True)
    }
    feeds["in2"] = np.array([4, 15])
    expected = evaluate(graph, feeds)
    given = GpuExecutable(compile_for_gpu(graph, device().arch), device()).run(feeds)
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
