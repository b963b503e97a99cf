"""The runner: stages and options, checks after every pass, and the rewrite at fault named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from monograph import pipeline
from monograph.errors import ConfigError
from monograph.ir import Graph, Value, constant, dtype, unpack
from monograph.ops.control import If
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add, Clip, Exp, Less, Mul, Neg, Sigmoid, Sub, Tanh
from monograph.ops.linear import Dot
from monograph.ops.random import RandomNormal, fresh_uid
from monograph.ops.reduce import ArgMax
from monograph.ops.shape import Concat, Slice
from monograph.passes.base import Environment, Pass, RulePass
from monograph.pipeline import PassOptions, Stage, optimise, parse_pass_options
from monograph.rewrite import Rule, rewrite, variables
from monograph.runtime.numerics.bisect import NumericCheck, PassError, first_difference
from tests.effort import check_linear
from tests.rules.checks import graph_of, value

v_x, v_y = variables("x y")
x, y = value("f32[2, 3]"), value("f32[2, 3]", "y")


@rewrite(Sub()(v_x, v_y), exact=True)
def subtract_as_add(x: Value, y: Value) -> Value:
    """x - y -> x + (-y)"""
    return Add()(x, Neg()(y))


@rewrite(Tanh()(v_x), exact=True)
def drop_tanh(x: Value) -> Value:
    """tanh(x) -> x, which is wrong"""
    return x


@dataclass(frozen=True)
class Broken(RulePass):
    """Right rules and a wrong one."""

    rules: ClassVar[tuple[Rule, ...]] = (subtract_as_add, drop_tanh)


@dataclass(frozen=True)
class DropOutputs(Pass):
    """Leaves an output out."""

    def run(self, graph: Graph, environment: Environment) -> Graph:
        return Graph(graph.inputs, graph.outputs[:1], graph.name)


@dataclass(frozen=True)
class NegateOutputs(Pass):
    """Negates everything, without a limit to stop it."""

    def run(self, graph: Graph, environment: Environment) -> Graph:
        environment.trace.note_fired(self.name, "here", "y", "-y")
        outputs = tuple((n, Neg()(v)) for n, v in graph.outputs)
        return Graph(graph.inputs, outputs, graph.name)


@pytest.fixture
def with_pass(monkeypatch: pytest.MonkeyPatch):
    def install(step: Pass) -> None:
        monkeypatch.setattr(pipeline, "STAGES", (*pipeline.STAGES, Stage("test", (step,))))

    return install


def wide_graph(count: int, at: int) -> Graph:
    """Many differences, and one tanh among them."""
    values = []
    for i in range(count):
        shifted = Sub()(Mul()(x, constant(np.float32(i + 1))), y)
        values.append(Tanh()(shifted) if i == at else shifted)
    graph = graph_of(*values)
    origins = {v: f"{v.op.name}_{i}" for i, v in enumerate(graph.values)}
    return Graph(graph.inputs, graph.outputs, graph.name, origins)


@pytest.mark.parametrize("at", [0, 7, 19])
def test_the_rule_that_broke_the_numbers_is_named(with_pass, at: int) -> None:
    with_pass(Broken())
    graph = wide_graph(20, at)
    with pytest.raises(PassError, match=r"pass broken, rule drop_tanh: output .* beyond") as e:
        optimise(graph, verify_passes=True)
    fault = e.value.fault
    assert (fault.stage, fault.step) == ("test", "broken")
    assert fault.rewrite is not None
    assert fault.rewrite.rule == "drop_tanh"
    assert "tanh_" in fault.rewrite.origin
    assert fault.number >= 1
    assert fault.difference is not None
    assert fault.difference.name == f"y{at}"
    assert fault.difference.worst is not None


def test_without_verify_passes_only_the_structure_is_checked(with_pass) -> None:
    with_pass(Broken())
    before = wide_graph(3, 1)
    after = optimise(before)
    assert any(isinstance(v.op, Tanh) for v in before.values)
    assert not any(isinstance(v.op, Tanh) for v in after.values), "the pass has broken nothing"


def test_a_fault_inside_a_subgraph_is_named(with_pass) -> None:
    with_pass(Broken())
    inner = value("f32[2, 3]", "inner")
    then = Graph((inner,), (("r", Tanh()(Sub()(inner, Exp()(inner)))),), "then")
    otherwise = Graph((inner,), (("r", Tanh()(inner)),), "else")
    condition = Less()(value("f32[]", "c"), constant(np.float32(100)))
    branches = If(then, otherwise)(condition, x, x)
    graph = graph_of(Sub()(unpack(branches)[0], y))
    with pytest.raises(PassError, match="rule drop_tanh"):
        optimise(graph, verify_passes=True)


def test_a_pass_that_cannot_stop_half_way_is_named(with_pass) -> None:
    with_pass(NegateOutputs())
    with pytest.raises(PassError, match="pass negate_outputs") as e:
        optimise(graph_of(Exp()(x)), verify_passes=True)
    assert e.value.fault.number == 0
    assert e.value.node == "here"


def test_outputs_must_stay(with_pass) -> None:
    with_pass(DropOutputs())
    with pytest.raises(PassError, match="pass drop_outputs: the inputs or outputs are not"):
        optimise(graph_of(Exp()(x), Neg()(x)))


def test_exact_rules_are_held_to_every_bit() -> None:
    def difference(before: Graph, after: Graph, exact: bool):
        return NumericCheck(before).difference(before, after, exact)

    plain, swapped = graph_of(Mul()(x, x)), graph_of(Mul()(Abs()(x), x))
    assert difference(plain, swapped, exact=True) is not None
    minus = graph_of(Neg()(Abs()(Sub()(x, x))))
    plus = graph_of(Abs()(Sub()(x, x)))
    found = difference(minus, plus, exact=True)
    assert found is not None
    assert "sign" in (found.problem or "")
    assert difference(minus, plus, exact=False) is None


def test_what_rounding_decides_may_differ() -> None:
    """A sum that cancels and a tie that an argmax decides: both move when rounding does."""
    big = constant(np.float32(1e6))
    feeds = {"x": np.float32([[0.1, 0.2, 0.3], [1, 2, 3]])}
    before = graph_of(Sub()(Add()(x, big), big))
    after = graph_of(x)
    assert first_difference(before, after, feeds, exact=False) is None
    assert first_difference(before, after, feeds, exact=True) is not None
    tie = {"x": np.float32([[1, 1 + 2**-23, 0], [1, 2, 3]])}
    third = constant(np.float32(1 / 3))
    left = graph_of(ArgMax(1, True)(Mul()(x, third)))
    right = graph_of(ArgMax(1, True)(x))
    assert first_difference(left, right, tie, exact=False) is None
    other = graph_of(ArgMax(1, True)(Neg()(x)))
    assert first_difference(left, other, tie, exact=False) is not None


def test_open_dimensions_are_given_a_size() -> None:
    open_x = value("f32[N, 3]")
    numbers = NumericCheck(graph_of(Exp()(open_x)))
    assert dict(numbers.trial.assumed) == {"N": 2}
    assert numbers.trial.feeds["x"].shape == (2, 3)


def test_passes_can_be_left_out_and_told_otherwise() -> None:
    closed = Add()(constant(np.float32([1, 2, 3])), constant(np.float32([3, 4, 5])))
    graph = graph_of(Mul()(x, closed))
    assert len(optimise(graph).values) == 3
    assert optimise(graph, options=PassOptions(disabled=frozenset({"fold_constants"}))) == graph
    overrides = parse_pass_options(["fold_constants{budget=0}"])
    assert optimise(graph, options=PassOptions(overrides)) == graph
    seen: list[str] = []
    optimise(
        graph,
        options=PassOptions(until="simplify"),
        observe=lambda stage, step, g: seen.append(step.name),
    )
    assert seen[-1] == "simplify"


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="no such pass"):
        PassOptions(disabled=frozenset({"fold_everything"}))
    with pytest.raises(ConfigError, match="no such option"):
        PassOptions({"fold_constants": {"speed": 1}})
    for wrong in ("abc", 2.5, True):
        with pytest.raises(ConfigError, match="option budget of pass fold_constants") as e:
            PassOptions({"fold_constants": {"budget": wrong}})
        assert (e.value.expected, e.value.given) == ("int", wrong)
    PassOptions({"fold_constants": {"growth": 2}})
    with pytest.raises(ConfigError, match="did you mean simplify"):
        PassOptions(disabled=frozenset({"simplfy"}))
    for text in ("a b", "fold{", "fold{x}", "fold"):
        with pytest.raises(ConfigError, match="not a pass option"):
            parse_pass_options([text])
    parsed = parse_pass_options(["a{b=1, c=2.5,d=true,e='x'}", "f{}"])
    assert parsed == {"a": {"b": 1, "c": 2.5, "d": True, "e": "x"}, "f": {}}


def test_a_graph_that_draws_random_numbers_is_checked_for_structure_only() -> None:
    drawn = RandomNormal((2, 3), dtype("f32"), seed=None, uid=fresh_uid())()
    graph = graph_of(Add()(x, drawn), Sigmoid()(x))
    assert NumericCheck(graph).drawn == ["random_normal"]
    optimise(graph, verify_passes=True)


def test_the_work_grows_linearly_with_the_graph() -> None:
    generator = np.random.default_rng(0)

    def weights(*shape: int) -> Value:
        return constant(generator.normal(size=shape).astype(np.float32) / 3)

    def optimise_layers(count: int) -> None:
        last = value("f32[4, 8]")
        for _ in range(count):
            layer = Add()(Dot()(last, weights(8, 8)), weights(8))
            gated = Mul()(layer, Sigmoid()(layer))
            halves = [Slice((0, i), (4, i + 4), (1, 1))(gated) for i in (4, 0)]
            last = Add()(Clip(0.0)(Concat(1)(*halves)), last)
        graph = graph_of(last)
        assert len(optimise(graph).values) < len(graph.values)

    check_linear(optimise_layers, 100)


def test_a_join_that_leaves_one_reader_lets_convolutions_compose() -> None:
    rng = np.random.default_rng(0)

    def pixels(x: Value, channels: int) -> Value:
        weights = rng.normal(size=(channels, x.tensor.static[1], 1, 1)).astype(np.float32)
        return Conv((1, 1), (0, 0), (0, 0), (1, 1))(x, constant(weights))

    image = value("f32[1, 8, 16, 16]")
    shared = pixels(image, 8)
    before = graph_of(Exp()(pixels(shared, 4)), Tanh()(pixels(shared, 3)))
    environment = Environment()
    after = optimise(before, environment=environment, verify_passes=True)
    assert sum(isinstance(v.op, Conv) for v in after.values) == 1
    assert {"fuse_shared_input", "compose_pointwise"} <= set(environment.trace.counts())
