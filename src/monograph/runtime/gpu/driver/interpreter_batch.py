"""Interprets the programs of a launch in batches: Triton's interpreter takes one at a time.

Triton's interpreter spends its time on Python objects, not on numbers. Here every array has one
more axis, in front: the programs of a batch, or 1 where all of them hold the same. Triton's own
rules for types and shapes see the block alone, once for all programs. Scalars have this axis only.

Programs may disagree about a branch or the length of a loop. Then the batch takes back its stores,
and each group of programs that agree starts again. So programs of a batch run in step, groups one
after another; both are orders that a device may choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.errors import InterpreterError

from monograph.ir import Array
from monograph.runtime.gpu.driver.interpreter_checks import watched

module: Any = triton_interpreter
Handle: Any = module.TensorHandle
FIRST = 16
"""Programs of the first batch of a launch; it shows how large the blocks are."""
ELEMENTS = 1 << 17
"""Elements of the largest array of a batch: caches hold it, and Python's overhead is small."""
SHARES = 4
"""Programs per group that agrees; a kernel with fewer runs its programs one by one from then on."""


class DivergenceError(Exception):
    """Programs of a batch disagree about a branch or the length of a loop."""

    def __init__(self, chosen: Array) -> None:
        super().__init__("programs of a batch disagree")
        self.chosen = chosen


class BatchBuilder(module.InterpreterBuilder):  # type: ignore[misc]
    """Triton's operations on arrays whose first axis is the program."""

    def __init__(self) -> None:
        super().__init__()
        # Triton computes what detects an overflow, and looks at it only where it debugs.
        self.options = module.InterpreterOptions(sanitize_overflow=False)
        self.programs = np.zeros((3, 1), np.int32)
        self.widest = 1

    def choose(self, programs: Array) -> None:
        """Makes the columns of x, y and z the programs of the batch."""
        self.programs = programs

    def create_get_program_id(self, axis: int) -> Any:
        numbers = self.programs[axis]
        same = bool((numbers == numbers[0]).all())
        return Handle(numbers[:1] if same else numbers, tl.int32)

    def create_masked_load(self, pointers: Any, mask: Any, other: Any, *_: Any) -> Any:
        kind = pointers.get_element_ty()
        dtype = module._get_np_dtype(kind)
        instead = np.zeros(1, dtype) if other is None else other.data
        where, allowed, instead = np.broadcast_arrays(pointers.data, mask.data, instead)
        self._grow(where)
        return Handle(module._interpreter.load(where, allowed, instead, dtype), kind)

    def create_masked_store(self, pointers: Any, value: Any, mask: Any, *_: Any) -> Any:
        where, values, allowed = np.broadcast_arrays(pointers.data, value.data, mask.data)
        return module._interpreter.store(where, values, allowed)

    def create_atomic_rmw(
        self, how: Any, pointers: Any, value: Any, mask: Any, order: Any, scope: Any
    ) -> Any:
        spread = (self._each(x) for x in (pointers, value, mask))
        return super().create_atomic_rmw(how, *spread, order, scope)

    def create_atomic_cas(
        self, pointers: Any, expected: Any, value: Any, order: Any, scope: Any
    ) -> Any:
        spread = (self._each(x) for x in (pointers, expected, value))
        return super().create_atomic_cas(*spread, order, scope)

    def create_make_range(self, kind: Any, start: int, stop: int) -> Any:
        return Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)

    def create_splat(self, kind: Any, given: Any) -> Any:
        data = given.data
        # A comparison says that it holds int32. A mask has to hold bools.
        if data.dtype != np.bool_:
            data = data.astype(module._get_np_dtype(given.dtype), copy=False)
        shape = tuple(int(n) for n in kind.shape)
        spread = data.reshape(len(data), *[1] * len(shape))
        return Handle(np.broadcast_to(spread, (len(data), *shape)), given.dtype.scalar)

    def create_unsplat(self, given: Any) -> Any:
        return Handle(given.data.reshape(len(given.data)), given.dtype.scalar)

    def create_reshape(self, given: Any, shape: Sequence[int], *_: Any) -> Any:
        return Handle(given.data.reshape(len(given.data), *shape), given.dtype.scalar)

    def create_trans(self, given: Any, order: Sequence[int]) -> Any:
        return Handle(given.data.transpose(0, *(n + 1 for n in order)), given.dtype.scalar)

    def create_expand_dims(self, given: Any, axis: int) -> Any:
        return Handle(np.expand_dims(given.data, axis + 1), given.dtype.scalar)

    def create_broadcast(self, given: Any, shape: Sequence[int]) -> Any:
        made = np.broadcast_to(given.data, (len(given.data), *shape))
        self._grow(made)
        return Handle(made, given.dtype.scalar)

    def create_join(self, left: Any, right: Any) -> Any:
        return super().create_join(*_level(left, right))

    def create_cat(self, left: Any, right: Any) -> Any:
        data = np.concatenate([x.data for x in _level(left, right)], axis=1)
        return Handle(data, left.dtype.scalar)

    def create_gather(self, source: Any, indices: Any, axis: int) -> Any:
        of, at = _level(source, indices)
        return Handle(np.take_along_axis(of.data, at.data, axis + 1), source.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        made = super().create_dot(a, b, d, *rest)
        self._grow(made.data)
        return made

    def _each(self, handle: Any) -> Any:
        """An operand once for every program: an atomic operation counts how often it happens."""
        shape = (self.programs.shape[1], *handle.data.shape[1:])
        return Handle(np.ascontiguousarray(np.broadcast_to(handle.data, shape)), handle.dtype)

    def _grow(self, data: Array) -> None:
        self.widest = max(self.widest, data.size // len(data))


def _level(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two operands with the same number of programs."""
    programs = max(len(left.data), len(right.data))
    made = (np.broadcast_to(x.data, (programs, *x.data.shape[1:])) for x in (left, right))
    a, b = (Handle(data, x.dtype) for data, x in zip(made, (left, right), strict=True))
    return a, b


def _tensor(data: Array, kind: Any) -> Any:
    """Return an array as a Triton tensor of a scalar type."""
    made = Handle(data.astype(module._get_np_dtype(kind), copy=False), kind.scalar)
    return tl.core.tensor(
        made, tl.block_type(kind, list(data.shape[1:])) if data.ndim > 1 else kind
    )


def _choice(tensor: Any, of: Callable[[Any], Any]) -> Any:
    """Return the value of a scalar that all programs share; raise an error if they disagree."""
    data = tensor.handle.data.reshape(len(tensor.handle.data), -1)[:, 0]
    if not (data == data[0]).all():
        raise DivergenceError(data)
    return of(data[0])


def _truth(tensor: Any) -> bool:
    """Return whether a scalar is true. A block is true, as in Triton's interpreter."""
    return bool(_choice(tensor, bool)) if tensor.numel.value == 1 else True


def _transposed(tensor: Any) -> Any:
    return _tensor(tensor.handle.data.swapaxes(-1, -2), tensor.dtype)


# Reductions and scans ---------------------------------------------------------------------------


def _reduce(given: Any, axis: Any, combine: Any, keep_dims: bool = False, **_: Any) -> Any:
    if not isinstance(given, tuple):
        return _reduce((given,), axis, combine, keep_dims)[0]
    along, arrays = _along(given, axis), [x.handle.data for x in given]
    if along is None:
        arrays, along = [x.reshape(len(x), -1) for x in arrays], 1
    kinds = [x.dtype for x in given]
    made = _known_reduction(arrays, along, combine)
    if made is None:
        made = list(_steps(arrays, along, combine, kinds))[-1]
    elif len(made) > 1:
        kinds = [kinds[0], tl.int32]
    if keep_dims:
        rank = len(given[0].shape)
        places = tuple(range(1, rank + 1)) if along != _along(given, axis) else (along,)
        made = [np.expand_dims(x, places) for x in made]
    return tuple(_tensor(x, kind) for x, kind in zip(made, kinds, strict=True))


def _known_reduction(arrays: Sequence[Array], along: int, combine: Any) -> list[Array] | None:
    """Reductions that numpy has, as Triton's interpreter maps them."""
    standard = tl.standard
    for name, value, index in (("min", np.nanmin, np.nanargmin), ("max", np.nanmax, np.nanargmax)):
        ties = [getattr(standard, f"_arg{name}_combine_tie_break_{s}") for s in ("left", "fast")]
        if combine in ties:
            return [value(arrays[0], along), index(arrays[0], along)]
        if combine is getattr(standard, f"_elementwise_{name}"):
            return [value(arrays[0], along)]
    return [np.sum(arrays[0], along)] if combine is module.tl.standard._sum_combine else None


def _scan(given: Any, axis: Any, combine: Any, reverse: bool = False, **_: Any) -> Any:
    if not isinstance(given, tuple):
        return _scan((given,), axis, combine, reverse)[0]
    along, arrays = _along(given, axis), [x.handle.data for x in given]
    kinds = [x.dtype for x in given]
    assert along is not None, "a scan has an axis"
    if reverse:
        arrays = [np.flip(x, along) for x in arrays]
    if combine is module.tl.standard._sum_combine:
        made = [np.cumsum(arrays[0], along)]
    elif combine is module.tl.standard._prod_combine:
        made = [np.cumprod(arrays[0], along)]
    else:
        rows = list(_steps(arrays, along, combine, kinds))
        made = [np.stack(np.broadcast_arrays(*x), along) for x in zip(*rows, strict=True)]
    if reverse:
        made = [np.ascontiguousarray(np.flip(x, along)) for x in made]
    return tuple(_tensor(x, kind) for x, kind in zip(made, kinds, strict=True))


def _along(given: Sequence[Any], axis: Any) -> int | None:
    """Return the array axis of a block axis; None for all axes."""
    axis = getattr(axis, "value", axis)
    rank = len(given[0].shape)
    if axis is None:
        return None
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} out of bounds for shape {given[0].shape}")
    return int(axis % rank) + 1


def _steps(
    arrays: Sequence[Array], along: int, combine: Any, kinds: Sequence[Any]
) -> Iterator[list[Array]]:
    """Yield the kernel's own combination of the elements up to each position of an axis."""
    held: list[Array] = []
    for i in range(arrays[0].shape[along]):
        fresh = [np.take(x, i, along) for x in arrays]
        if held:
            pairs = [
                (x, kind) for rows in (held, fresh) for x, kind in zip(rows, kinds, strict=True)
            ]
            made = combine.fn(*(_tensor(x, kind) for x, kind in pairs))
            parts = made if isinstance(made, tuple) else (made,)
            fresh = [p.handle.data.astype(x.dtype) for p, x in zip(parts, fresh, strict=True)]
        held = fresh
        yield held


# Launches ---------------------------------------------------------------------------------------


@cache
def _changes() -> list[tuple[Any, str, Any, Any]]:
    """Every attribute of Triton's language that the interpreter replaces, before and after."""
    builder, plain = BatchBuilder(), module.interpreter_builder
    # Older versions of Triton bind their functions to this builder, newer ones to that of a run.
    module.interpreter_builder = builder
    scope = module._patch_lang(_both)
    try:
        for where in (tl, tl.core):
            scope.set_attr(where, "reduce", _reduce)
            scope.set_attr(where, "associative_scan", _scan)
        scope.set_attr(tl.tensor, "__bool__", _truth)
        scope.set_attr(tl.tensor, "__index__", lambda self: _choice(self, int))
        scope.set_attr(tl.tensor, "T", property(_transposed))
        scope.set_attr(module.interpreter_semantic, "builder", builder)
        scope.set_attr(module.InterpretedFunction, "__call__", _call)
        first = {
            (id(o), name): (o, name, old) for o, name, old in reversed(vars(scope)["_changes"])
        }
        return [(o, name, old, o.__dict__[name]) for o, name, old in first.values()]
    finally:
        scope.restore()
        module.interpreter_builder = plain


def _both() -> Any:
    """Names the modules of Triton's language, for the interpreter to replace in all of them."""
    return tl, core


core = tl.core


def _call(function: Any, *arguments: Any, **named: Any) -> Any:
    """A function that a kernel calls: the language has been replaced for it already."""
    return function.rewrite()(*arguments, **named)


@contextmanager
def _language() -> Iterator[BatchBuilder]:
    """Lets Triton's language compute batches of programs; gives what builds its operations."""
    changes = _changes()
    for where, name, _, new in changes:
        setattr(where, name, new)
    try:
        yield module.interpreter_semantic.builder
    finally:
        for where, name, old, _ in reversed(changes):
            if old is module._MISSING:
                delattr(where, name)
            else:
                setattr(where, name, old)


class Grid:
    """The programs of a kernel, interpreted in batches."""

    def __init__(self, function: Any, grid: Sequence[int]) -> None:
        self._function = function
        sizes = (*grid, 1, 1)[:3]
        self._sizes = sizes
        self._programs = np.indices(sizes, np.int32).reshape(3, -1)
        self._diverges = False

    def __call__(self, *tensors: Any) -> None:
        """Runs all programs on these tensors."""
        body = self._function.rewrite()
        given = [module._implicit_cvt(t) for t in tensors]
        begun, count, size = 0, self._programs.shape[1], FIRST
        with _language() as builder:
            builder.set_grid_dim(*self._sizes)
            builder.widest = 1
            while begun < count:
                part = self._programs[:, begun : begun + (1 if self._diverges else size)]
                groups = self._run(builder, body, given, part)
                self._diverges |= groups > 1 and part.shape[1] < SHARES * groups
                begun += part.shape[1]
                size = max(1, ELEMENTS // builder.widest)

    def _run(self, builder: BatchBuilder, body: Any, given: Sequence[Any], programs: Array) -> int:
        """Runs programs at once, or in groups that agree; the number of groups."""
        builder.choose(programs)
        memory = watched()
        memory.undo = [] if programs.shape[1] > 1 else None
        try:
            body(*given)
            return 1
        except DivergenceError as error:
            memory.take_back()
            chosen = np.broadcast_to(error.chosen, programs.shape[1:])
        except Exception as error:
            raise InterpreterError(repr(error)) from error
        finally:
            memory.undo = None
        values = [chosen == value for value in dict.fromkeys(chosen.tolist())]
        return sum(self._run(builder, body, given, programs[:, agree]) for agree in values)
