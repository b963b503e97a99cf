"""Loops that are made turn by turn: the host goes round, and every turn is native code.

So are loops whose state changes its size for as long as data want it. The body is compiled once;
the sizes of the state are arguments of its code (`open_part.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from monograph.ir import Graph, TensorType, Value, known
from monograph.ops.control import Loop, Scan
from monograph.program.dynamic.remainders import turn
from monograph.program.dynamic.resize import Change
from monograph.runtime.cpu.any_shape import AnyShapeExecutable
from monograph.runtime.dynamic.appended_state import AppendedState, split_appended
from monograph.runtime.dynamic.open_part import (
    MOST_BOUND,
    Formal,
    OpenPart,
    PartCompiler,
    Sizes,
)
from monograph.runtime.executable import Executable
from monograph.runtime.forking import ForkLock

KEPT_TURNS = 256
"""The most turns of unlike shapes that a loop keeps, where its body has no code for all sizes."""


_Turn: TypeAlias = tuple[Executable, int, int]
"""The executable of a turn, the native functions that it calls, and their kernels."""


class HostLoop:
    """A loop, and the code of its turns."""

    def __init__(self, loop: Value, compiler: PartCompiler) -> None:
        assert isinstance(loop.op, (Loop, Scan))
        self._op = loop.op
        self._body: Graph = loop.op.body
        self._appended: Mapping[int, int] = {}
        """The states that turns append to, by their outputs."""
        if isinstance(loop.op, Loop):
            self._body, self._appended = split_appended(loop.op)
        self._constants = _constants(loop)
        types = enumerate(loop.op.body.input_types)
        formals = [Formal(f"~{i}", t) for i, t in types if i not in self._constants]
        self._names = [f.name for f in formals]
        self._places = [int(n[1:]) for n in self._names]
        none = [False] * len(formals)
        self._part = OpenPart(formals, none, self._turn, compiler, KEPT_TURNS, grows=True)
        self._lock = ForkLock()
        self._ready: tuple[tuple[int, ...], dict[tuple[Any, ...], _Turn]] = ((), {})
        self.launches = 0
        """Native functions called in the run that called the most."""
        self.kernels = 0

    def run(self, operands: Sequence[Any], sizes: Sizes) -> tuple[Any, ...]:
        """Return the results of the loop, from its first turn to the one after which it stops.

        sizes: the open sizes of the program that the loop is in.
        """
        launches = kernels = 0
        names, places, ready = self._names, self._places, self._ready_for(sizes)
        states = [(at, AppendedState(operands[2 + i])) for at, i in self._appended.items()]

        def once(given: tuple[Any, ...]) -> list[Any]:
            nonlocal launches, kernels
            data = [given[i] for i in places]
            shapes = tuple([x.shape if x.__class__ is np.ndarray else None for x in data])
            found = ready.get(shapes)
            if found is None:
                found = self._find(data, shapes, sizes, ready)
            executable, own_launches, own_kernels = found
            feeds = dict(zip(names, data, strict=True))
            made = executable.try_run(feeds)
            if made is None:
                made = executable.run_full(feeds)
                # A loop inside may have turned more often than before.
                own_launches, own_kernels = executable.launches, executable.kernels
            launches, kernels = launches + own_launches, kernels + own_kernels
            for at, state in states:
                made[at] = state.append(made[at])
            return made

        results = self._op.turned(once, *operands)
        with self._lock:
            self.launches = max(self.launches, launches)
            self.kernels = max(self.kernels, kernels)
        return results

    def _ready_for(self, sizes: Sizes) -> dict[tuple[Any, ...], _Turn]:
        """Return the turns that have been made at these open sizes, by the shapes of operands."""
        key = tuple(sizes.values())
        with self._lock:
            if key != self._ready[0]:
                self._ready = (key, {})
            return self._ready[1]

    def _find(
        self,
        data: Sequence[Any],
        shapes: tuple[Any, ...],
        sizes: Sizes,
        ready: dict[tuple[Any, ...], _Turn],
    ) -> _Turn:
        with self._lock:
            executable = self._part.find(data, sizes)
            found = (executable, executable.launches, executable.kernels)
            # Exact code is dropped when there is too much of it.
            if isinstance(executable, AnyShapeExecutable) and len(ready) < MOST_BOUND:
                ready[shapes] = found
        return found

    def _turn(self, arguments: tuple[Value, ...], change: Change) -> Graph:
        """Return a turn on some arguments; those that are constants are known."""
        given = iter(arguments)
        count = len(self._body.inputs)
        every = tuple(
            self._constants[i] if i in self._constants else next(given) for i in range(count)
        )
        return turn(self._body, every, change)

    @property
    def stages(self) -> list[Executable]:
        """The code of the turns that are kept."""
        with self._lock:
            return self._part.executables

    @property
    def specialisations(self) -> int:
        """The number of programs compiled for new shapes, inside iterations too."""
        with self._lock:
            return self._part.specialisations


def _constants(loop: Value) -> dict[int, Value]:
    """The captures that are constants, by their place among the formals of the body."""
    assert isinstance(loop.op, (Loop, Scan))
    first = (
        2 + loop.op.carried if isinstance(loop.op, Loop) else loop.op.carried + len(loop.op.axes)
    )
    captured = enumerate(loop.inputs[first:], first)
    tensors = ((i, v) for i, v in captured if isinstance(v.type, TensorType))
    return {i: v for i, v in tensors if known(v) is not None}
