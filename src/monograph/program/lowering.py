"""The order of steps from an optimised graph to a program, once for each target.

    lowered = lower(graph, CpuTarget())        # a model, or the rest of one
    program = lower_body(body, CpuTarget())    # the body of a branch or a loop

Everything that needs a program calls one of these two: compilation, `inspect`, `explain`, profiles
and per-step verification. `pipeline.py` states the passes that come before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from monograph.errors import VerifyError
from monograph.ir import Array, Graph, Value
from monograph.passes.base import inherited_origins, joined_origins
from monograph.program.dynamic.remainders import settled
from monograph.program.dynamic.stages import StageSplit, contained, cut
from monograph.program.fusion.fuse import fuse
from monograph.program.fusion.op_classes import is_join, is_native, is_view, reads_codes
from monograph.program.fusion.region import Region
from monograph.program.launch_regions import SplitAtHost, held_by_host
from monograph.program.legalise.expand import expand, split_decoding
from monograph.program.legalise.less_work import (
    split_axes,
    split_zero_points,
    widen_convolutions,
)
from monograph.program.legalise.lower_complex import in_parts
from monograph.program.legalise.lower_random import with_states
from monograph.program.legalise.normalise import normalise, split_reductions
from monograph.program.legalise.open_constants import split_open_constants
from monograph.program.memory.buffer_assignment import Halo, Places, place
from monograph.program.memory.inplace import choose_overwrites, read_before_donated
from monograph.program.memory.memory_planner import MemoryPlan, plan
from monograph.program.program import Program, Step, lifetimes, verify_program


@dataclass
class Draft:
    """A graph on its way to a program. Each step replaces some of its fields."""

    graph: Graph
    target: LoweringTarget
    in_pairs: bool = False
    """True when complex numbers have become pairs of real ones."""
    states: Mapping[str, Array] = field(default_factory=dict)
    """The states of random ops, by the input that brings each."""
    split: StageSplit | None = None
    """The values that wait for data, when the program is only the first of several."""
    regions: list[Region] = field(default_factory=list)
    places: Places = field(default_factory=lambda: Places({}, []))
    program: Program | None = None


@dataclass(frozen=True)
class LoweringStep:
    """A named step, and what it applies to."""

    name: str
    run: Callable[[Draft], None]
    models: bool = True
    bodies: bool = True
    """Bodies of branches and loops are parts of one program: some steps do not apply to them."""


@dataclass(frozen=True)
class LoweringStage:
    """Steps that belong together, in order."""

    name: str
    steps: tuple[LoweringStep, ...]


def _graph_step(function: Callable[[Graph], Graph]) -> Callable[[Draft], None]:
    def run(draft: Draft) -> None:
        draft.graph = function(draft.graph)

    return run


def _lower_complex(draft: Draft) -> None:
    pairs = in_parts(draft.graph)
    draft.in_pairs = pairs is not None
    draft.graph = pairs or draft.graph


def _lower_random(draft: Draft) -> None:
    draft.graph, draft.states = with_states(draft.graph)


def _split_stages(draft: Draft) -> None:
    target = draft.target
    keeps_state = bool(draft.states) and not target.holds_states
    draft.split = cut(draft.graph, target.compiles, keeps_state, target.host_loops)
    if draft.split is not None:
        # Bounds make sizes known that were open before: more ops can be expanded.
        draft.graph = expand(draft.split.first)


def _bound_sizes(draft: Draft) -> None:
    draft.graph = contained(draft.graph, draft.target.compiles)


def _insert_copies(draft: Draft) -> None:
    target = draft.target
    made = normalise(draft.graph, target.readable, target.halo, target.ends)
    # Values that the steps have added come from the nodes that they were added for.
    draft.graph = replace(made, origins=inherited_origins(made, made.origins))


def _fuse(draft: Draft) -> None:
    draft.regions = fuse(draft.graph, draft.target.computes, draft.target.gathers)


def _merge_regions(draft: Draft) -> None:
    draft.regions = draft.target.merged(draft.graph, draft.regions)


def _assign_buffers(draft: Draft) -> None:
    draft.places = place(draft.graph, draft.regions, draft.target)
    # A join has no step: its parts are written into its buffer.
    draft.regions = [r for r in draft.regions if not (is_join(r.root) and is_native(r.root))]


def _read_before_donated(draft: Draft) -> None:
    draft.regions = read_before_donated(draft.graph, draft.regions, draft.places)


def _choose_overwrites(draft: Draft) -> None:
    draft.places.over = choose_overwrites(draft.graph, draft.regions, draft.places, draft.target)


def _plan_memory(draft: Draft) -> None:
    regions = enumerate(draft.regions)
    steps = tuple(Step(i, r, joined_origins(draft.graph, r.body)) for i, r in regions)
    memory: MemoryPlan = plan(lifetimes(steps, draft.places))
    draft.program = verify_program(Program(draft.graph, steps, draft.places, memory))


def _split_launches(draft: Draft) -> None:
    assert draft.program is not None
    draft.program = SplitAtHost(draft.target.host_reason).run(draft.program)


_UNROLL_LOOPS = LoweringStep("unroll_loops", _graph_step(settled), bodies=False)
_EXPAND = LoweringStep("expand", _graph_step(expand))
_LOWER_RANDOM = LoweringStep("lower_random", _lower_random, bodies=False)
_SPLIT_STAGES = LoweringStep("split_stages", _split_stages, bodies=False)
_BOUND_SIZES = LoweringStep("bound_sizes", _bound_sizes, models=False)

_STEPS_AND_MEMORY = (
    LoweringStage(
        "fusion",
        (
            LoweringStep("split_reductions", _graph_step(split_reductions)),
            LoweringStep("insert_copies", _insert_copies),
            LoweringStep("fuse", _fuse),
            LoweringStep("merge_regions", _merge_regions),
        ),
    ),
    LoweringStage(
        "memory",
        (
            LoweringStep("assign_buffers", _assign_buffers),
            LoweringStep("read_before_donated", _read_before_donated),
            LoweringStep("choose_overwrites", _choose_overwrites),
            LoweringStep("plan_memory", _plan_memory),
        ),
    ),
    LoweringStage("launches", (LoweringStep("split_launches", _split_launches, bodies=False),)),
)

CPU_LOWERING = (
    LoweringStage(
        "legalise",
        (
            LoweringStep("lower_complex", _lower_complex, bodies=False),
            _UNROLL_LOOPS,
            LoweringStep("split_decoding", _graph_step(split_decoding)),
            _EXPAND,
            _LOWER_RANDOM,
            _SPLIT_STAGES,
            _BOUND_SIZES,
            LoweringStep("split_open_constants", _graph_step(split_open_constants)),
            LoweringStep("split_axes", _graph_step(split_axes)),
            LoweringStep("split_zero_points", _graph_step(split_zero_points)),
            LoweringStep("widen_convolutions", _graph_step(widen_convolutions)),
        ),
    ),
    *_STEPS_AND_MEMORY,
)
GPU_LOWERING = (
    LoweringStage(
        "legalise",
        (
            _UNROLL_LOOPS,
            _EXPAND,
            _LOWER_RANDOM,
            _SPLIT_STAGES,
            _BOUND_SIZES,
        ),
    ),
    *_STEPS_AND_MEMORY,
)


class LoweringTarget:
    """The rules of a target's kernels. The defaults are those of kernels that can do the least."""

    lowering: tuple[LoweringStage, ...] = CPU_LOWERING
    holds_states = False
    """True when executables keep the states of random ops themselves."""
    host_loops = False
    """True when the host runs loops that cannot be compiled, one compiled iteration at a time."""

    def compiles(self, value: Value) -> bool:
        """Return whether a branch or a loop is compiled whole: all sizes known, inside it too."""
        return False

    def host_reason(self, region: Region) -> str:
        """Say why a region runs on the host; "" when the target computes it."""
        return held_by_host(region)

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        """Return whether the kernel of `user` can read an operand through its views."""
        return not is_view(operand)

    def halo(self, user: Value, index: int) -> Halo | None:
        """Return the zeros that the kernel of `user` expects around an operand."""
        return None

    def ends(self, graph: Graph) -> frozenset[Value]:
        """Return the outputs that may stay views, because kernels write through them."""
        return frozenset()

    def computes(self, user: Value, index: int) -> bool:
        """Return whether the kernel of `user` computes an operand while it reads it."""
        return reads_codes(user, index)

    def gathers(self, anchor: Value, starts: tuple[int, ...], width: int) -> bool:
        """Return whether a kernel holds columns together that its epilogue reads together."""
        return False

    def merged(self, graph: Graph, regions: list[Region]) -> list[Region]:
        """Return the regions, those merged that one kernel computes."""
        return regions

    def overwrites(self, region: Region) -> bool:
        """Return whether a region's kernel may write its result over an operand.

        It must make each element once, after it has read all that it reads at that place.
        """
        return False


@dataclass(frozen=True, eq=False)
class Lowered:
    """A lowered graph: a program, and what else a run takes."""

    program: Program
    """The whole graph; with a split, the part that runs first."""
    split: StageSplit | None
    """The values that wait until data are known; None when the program is all."""
    states: Mapping[str, Array]
    """The states of random ops, by the input that brings each."""
    in_pairs: bool
    """True when the program takes and gives pairs of real numbers for complex numbers."""

    @property
    def whole(self) -> Program:
        """The program, which must be all of the graph."""
        if self.split is not None:
            raise VerifyError(
                "a graph must be one program here; values in it wait for data or keep a state",
                given=[v.op.name for v in self.split.waiting] or [*self.states],
            )
        return self.program


def lower(graph: Graph, target: LoweringTarget) -> Lowered:
    """Lower an optimised graph of known input shapes for a target."""
    draft = Draft(graph, target)
    for stage in target.lowering:
        _run(stage, draft, models=True)
    assert draft.program is not None
    return Lowered(draft.program, draft.split, draft.states, draft.in_pairs)


def lower_body(graph: Graph, target: LoweringTarget) -> Program | None:
    """Lower the body of a branch or a loop; None when a value in it is no tensor of static shape.

    Kernels ask for sizes, so only the first stage can take such a body.
    """
    draft = Draft(graph, target)
    legalise, *others = target.lowering
    _run(legalise, draft, models=False)
    if not all(map(is_native, draft.graph.values)):
        return None
    for stage in others:
        _run(stage, draft, models=False)
    return draft.program


def _run(stage: LoweringStage, draft: Draft, *, models: bool) -> None:
    for step in stage.steps:
        if step.models if models else step.bodies:
            step.run(draft)
