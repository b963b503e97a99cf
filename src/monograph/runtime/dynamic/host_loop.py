"""Loops that are made turn by turn: the host goes round, and every turn is native code.

So are loops whose state changes its size for as long as data want it: there is no one size to
compile for. A turn is compiled for the shapes it meets, and kept for the next that meets them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from monograph.ir import Graph, Input, TensorType, Value, known
from monograph.ops.control import Loop, Scan
from monograph.program.dynamic.stages import turn, type_of
from monograph.runtime.executable import Executable
from monograph.runtime.forking import ForkLock

KEPT_TURNS = 256
"""Turns of unlike shapes that a loop keeps: state that grows meets a new one each time."""
CONSTANT_BYTES = 1 << 30
"""The bytes that the constants of kept iterations may take; one iteration is always kept."""


class HostLoop:
    """A loop, and the code of those of its turns that were used last."""

    def __init__(self, loop: Value, compile_turn: Callable[[Graph], Executable]) -> None:
        assert isinstance(loop.op, (Loop, Scan))
        self._op = loop.op
        self._compile = compile_turn
        self._turns: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._lock = ForkLock()
        self._constants = _constants(loop)
        self.compiled = 0
        """The number of iterations that were compiled."""
        self.launches = 0
        """Native functions called in the run that called the most."""
        self.kernels = 0
        self._gone = 0

    def run(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The results of the loop, from its first turn to the one after which it stops."""
        launches = kernels = 0

        def once(given: tuple[Any, ...]) -> list[Any]:
            nonlocal launches, kernels
            executable = self._executable(given)
            made = executable.run({f"~{i}": x for i, x in enumerate(given)})
            launches, kernels = launches + executable.launches, kernels + executable.kernels
            return made

        results = self._op.turned(once, *operands)
        with self._lock:
            self.launches = max(self.launches, launches)
            self.kernels = max(self.kernels, kernels)
        return results

    def _executable(self, given: tuple[Any, ...]) -> Executable:
        """The code of a turn that takes data of these shapes."""
        key = tuple(x.shape if isinstance(x, np.ndarray) else None for x in given)
        with self._lock:
            found = self._turns.get(key)
            if found is None:
                found = self._turns[key] = self._compile(
                    turn(self._op.body, self._arguments(given))
                )
                self.compiled += 1
            self._turns.move_to_end(key)
            self._forget()
        return found

    def _arguments(self, given: tuple[Any, ...]) -> tuple[Value, ...]:
        """Return the argument for each formal of the body: an input of its shape, or a constant."""
        formals = zip(self._op.body.input_types, given, strict=True)
        inputs = [Input(f"~{i}", type_of(x, t))() for i, (t, x) in enumerate(formals)]
        return tuple(self._constants.get(i, v) for i, v in enumerate(inputs))

    def _forget(self) -> None:
        while len(self._turns) > KEPT_TURNS or (
            len(self._turns) > 1
            and sum(e.constant_bytes for e in self._turns.values()) > CONSTANT_BYTES
        ):
            _, gone = self._turns.popitem(last=False)
            self._gone += gone.specialisations

    @property
    def stages(self) -> list[Executable]:
        """The code of the turns that are kept."""
        with self._lock:
            return list(self._turns.values())

    @property
    def specialisations(self) -> int:
        """The number of programs compiled for new shapes, inside iterations too."""
        inside = sum(e.specialisations for e in self.stages)
        return self.compiled + self._gone + inside


def _constants(loop: Value) -> dict[int, Value]:
    """The captures that are constants, by their place among the formals of the body."""
    assert isinstance(loop.op, (Loop, Scan))
    first = (
        2 + loop.op.carried if isinstance(loop.op, Loop) else loop.op.carried + len(loop.op.axes)
    )
    captured = enumerate(loop.inputs[first:], first)
    tensors = ((i, v) for i, v in captured if isinstance(v.type, TensorType))
    return {i: v for i, v in tensors if known(v) is not None}
