"""Writes the text of an LLVM function: registers, loops, loads and stores, vectors.

Every shape and stride is a literal, loop-carried values are explicit phis, and no optimisation pass
runs afterwards: LLVM's code generator sees exactly this text.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from monograph.codegen.common.registers import FLOATS, Reg, vector
from monograph.codegen.llvm.module.bounds_checks import GUARD, SLACK_MARK
from monograph.codegen.llvm.module.features import Features
from monograph.ir.size_texts import SIZE_REGISTER
from monograph.ir.sizes import is_open, proven

Int: TypeAlias = "int | Reg"


def float_text(number: float, element: str) -> str:
    """A float literal, exact to the bit."""
    if element == "double":
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if element == "half":
        return f"0xH{int(np.array(number, np.float16).view(np.uint16)):04X}"
    with np.errstate(over="ignore"):
        single = float(np.float32(number))
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def _is(number: Int, literal: int) -> bool:
    """Return True if a number is a literal, not merely equal to it at run time."""
    return not isinstance(number, Reg) and not is_open(number) and number == literal


def _is_less(a: Int, b: Int) -> bool:
    """Return True if a is proven to be at most b; nothing is known of registers."""
    return not isinstance(a, Reg) and not isinstance(b, Reg) and proven(a, "<=", b)


class Builder:
    """The body of one function, line by line."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[tuple[str, str]],
        returns: str = "void",
        features: Features | None = None,
        checked: bool = False,
    ):
        self.name = name
        self.features = features
        self.checked = checked
        """True if every access will be checked (see `bounds_checks`)."""
        self.guards = 0
        """The number of addresses that are checked because no proof covers them (see `guarded`)."""
        self.returns = returns
        self.arguments = {n: Reg(f"%{n}", t.split(" ")[0]) for n, t in arguments}
        self.signature = ", ".join(f"{t} %{n}" for n, t in arguments)
        self.spans: dict[str, int] = {}
        """Open sizes by their texts, for spans of calls."""
        self.passes_sizes = False
        """True if the function passes the table of open sizes on."""
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.block = "entry"
        self._count = 0

    @property
    def converts_half(self) -> bool:
        """True if the host converts between f16 and f32 by an instruction."""
        return self.features is not None and self.features.converts_half

    def text(self, attributes: str = "nounwind") -> str:
        """The function as LLVM text. It must have ended its last block with `ret`."""
        body = "\n".join(self.lines)
        head = f"define {self.returns} @{self.name}({self.signature}) {attributes}"
        return f"{head} {{\nentry:\n{body}\n}}\n"

    def load_sizes(self, table: Reg) -> bool:
        """Load the open sizes that the function uses at its start; return False without any."""
        used = {int(n) for line in self.lines for n in SIZE_REGISTER.findall(line)}
        loads = []
        for n in sorted(used):
            at = f"getelementptr inbounds i64, ptr {table}, i64 {n}"
            loads += [
                f"  %size.at.{n} = {at}",
                f"  %size.{n} = load i64, ptr %size.at.{n}, align 8",
            ]
        self.lines[:0] = loads
        return bool(used) or self.passes_sizes

    # Lines and registers

    def fresh(self, stem: str = "v") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def set(self, type_: str, text: str) -> Reg:
        """A new register with the result of an instruction."""
        reg = Reg(self.fresh(), type_)
        self.line(f"{reg} = {text}")
        return reg

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def new_label(self, stem: str = "b") -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: Reg, yes: str, no: str) -> None:
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")

    def ret(self) -> None:
        self.line("ret void")

    def call(self, name: str, returns: str, *arguments: Reg, flags: str = "") -> Reg:
        """Call a function or intrinsic, and declare it."""
        types = ", ".join(a.type for a in arguments)
        self.declarations.add(f"declare {returns} @{name}({types})")
        listed = ", ".join(f"{a.type} {a}" for a in arguments)
        text = f"call {flags + ' ' if flags else ''}{returns} @{name}({listed})"
        if returns == "void":
            self.line(text)
            return Reg("", "void")
        return self.set(returns, text)

    def intrinsic(self, stem: str, *arguments: Reg) -> Reg:
        """An intrinsic that works on one type, such as llvm.fma."""
        kind = arguments[0].type
        return self.call(f"llvm.{stem}.{mangled(kind)}", kind, *arguments)

    # Integers: Python ints stay ints as long as possible

    def i64(self, value: Int) -> Reg:
        return value if isinstance(value, Reg) else Reg(str(value), "i64")

    def add(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if _is(a, 0) or _is(b, 0):
            return b if _is(a, 0) else a
        return self.set("i64", f"add nsw i64 {a}, {b}")

    def sub(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if _is(b, 0) else self.set("i64", f"sub nsw i64 {a}, {b}")

    def mul(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if _is(a, 0) or _is(b, 0):
            return 0
        if _is(a, 1) or _is(b, 1):
            return b if _is(a, 1) else a
        return self.set("i64", f"mul nsw i64 {a}, {b}")

    def div(self, a: Int, b: int) -> Int:
        """Floor division of a number that is not negative."""
        if isinstance(a, int):
            return a // b
        return a if _is(b, 1) else self.set("i64", f"udiv i64 {a}, {b}")

    def mod(self, a: Int, b: int) -> Int:
        """The remainder of a number that is not negative."""
        if isinstance(a, int):
            return a % b
        return 0 if _is(b, 1) else self.set("i64", f"urem i64 {a}, {b}")

    def quotient(self, a: Int, b: Reg) -> Reg:
        """Divide a number that is not negative by a register that is not 0."""
        return self.set("i64", f"udiv i64 {a}, {b}")

    def minimum(self, a: Int, b: Int) -> Int:
        if _is_less(a, b) or _is_less(b, a):
            return a if _is_less(a, b) else b
        less = self.compare("slt", self.i64(a), self.i64(b))
        return self.set("i64", f"select i1 {less}, i64 {a}, i64 {b}")

    def maximum(self, a: Int, b: Int) -> Int:
        if _is_less(a, b) or _is_less(b, a):
            return b if _is_less(a, b) else a
        less = self.compare("slt", self.i64(a), self.i64(b))
        return self.set("i64", f"select i1 {less}, i64 {b}, i64 {a}")

    def coordinates(self, number: Int, shape: Sequence[int]) -> list[Int]:
        """Return the index of an element from its number in row-major order."""
        steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return [self.mod(self.div(number, s), d) for s, d in zip(steps, shape, strict=True)]

    def position(self, index: Sequence[Int], strides: Sequence[int], start: Int = 0) -> Int:
        """Return the offset of an index in strided memory."""
        for number, stride in zip(index, strides, strict=True):
            start = self.add(start, self.mul(number, stride))
        return start

    def compare(self, how: str, a: Reg, b: Reg) -> Reg:
        op = "fcmp" if how[0] in "ou" and a.element in FLOATS else "icmp"
        return self.set(vector(a.lanes, "i1"), f"{op} {how} {a.type} {a}, {b}")

    # Memory

    def offset(self, pointer: Reg, bytes_: Int) -> Reg:
        if _is(bytes_, 0):
            return pointer
        return self.set("ptr", f"getelementptr inbounds i8, ptr {pointer}, i64 {bytes_}")

    def load(self, type_: str, pointer: Reg, align: int, slack: bool = False) -> Reg:
        """Load a value. With `slack` its last lanes may be beyond the buffer.

        That is allowed in the program's own memory, not in a caller's arrays.
        """
        mark = f" {SLACK_MARK}" if slack else ""
        return self.set(type_, f"load {type_}, ptr {pointer}, align {align}{mark}")

    def store(self, value: Reg, pointer: Reg, align: int) -> None:
        self.line(f"store {value.type} {value}, ptr {pointer}, align {align}")

    def guarded(self, number: Int, extent: int, lanes: int = 1) -> Int:
        """Return an element offset, or 0 if `lanes` elements from there leave the buffer.

        The violation is reported. This is for index maps that no proof covers.
        """
        self.guards += 1
        at, most = self.i64(number), extent - max(lanes, 1)
        bad = Reg("true", "i1")
        if is_open(most) or most >= 0:
            bad = self.compare("ugt", at, Reg(str(most), "i64"))

        def write() -> None:
            self.store(at, self.offset(Reg(f"%{GUARD}", "ptr"), 8), 8)
            self.store(Reg("1", "i64"), Reg(f"%{GUARD}", "ptr"), 8)

        self.when(bad, write)
        return self.set("i64", f"select i1 {bad}, i64 0, i64 {at}")

    # Vectors

    def splat(self, scalar: Reg, lanes: int) -> Reg:
        """A scalar in every lane; itself for no lanes."""
        if not lanes:
            return scalar
        kind = vector(lanes, scalar.type)
        first = self.set(kind, f"insertelement {kind} poison, {scalar.type} {scalar}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.set(kind, f"shufflevector {kind} {first}, {kind} poison, {mask}")

    def number(self, number: float, element: str, lanes: int = 0) -> Reg:
        """A literal of an element type, or an open size, in every lane."""
        if is_open(number):
            return self.splat(self._sized(number, element), lanes)
        if element in FLOATS:
            text = float_text(float(number), element)
        elif element == "i1":
            text = "true" if number else "false"
        else:
            text = str(int(number))
        kind = vector(lanes, element)
        return Reg(f"splat ({element} {text})" if lanes else text, kind)

    def _sized(self, size: int, element: str) -> Reg:
        if element == "i64":
            return self.i64(size)
        how = "sitofp" if element in FLOATS else "trunc"
        return self.set(element, f"{how} i64 {size} to {element}")

    def extract(self, value: Reg, lane: int) -> Reg:
        return self.set(value.element, f"extractelement {value.type} {value}, i64 {lane}")

    def insert(self, value: Reg, scalar: Reg, lane: int) -> Reg:
        text = f"insertelement {value.type} {value}, {scalar.type} {scalar}, i64 {lane}"
        return self.set(value.type, text)

    def shuffle(self, x: Reg, y: Reg, lanes: Sequence[int]) -> Reg:
        """Return some lanes of two vectors, those of the second numbered after the first's."""
        mask = ", ".join(f"i32 {k}" for k in lanes)
        text = f"shufflevector {x.type} {x}, {y.type} {y}, <{len(lanes)} x i32> <{mask}>"
        return self.set(vector(len(lanes), x.element), text)

    # Control flow

    def loop(
        self,
        start: Int,
        stop: Int,
        step: Int,
        body: Callable[[Int, list[Reg]], Iterable[Reg] | None],
        carried: Sequence[Reg] = (),
    ) -> list[Reg]:
        """for i in range(start, stop, step); `body` gets i and carried values, returns new ones.

        Literal bounds with one trip, or none, emit no loop.
        """
        if not (isinstance(start, Reg) or isinstance(stop, Reg) or isinstance(step, Reg)):
            if proven(stop, "<=", start):
                return list(carried)
            if proven(start, "<", stop) and proven(stop, "<=", start + step):
                return list(body(start, list(carried)) or ())

        def once(index: Reg, *phis: Reg) -> list[Reg]:
            results = list(body(index, list(phis)) or ())
            return [self.set("i64", f"add nsw i64 {index}, {step}"), *results]

        starts = [("i", self.i64(start)), *(("c", c) for c in carried)]
        found = self.loop_while(starts, lambda i, *_: self.compare("slt", i, self.i64(stop)), once)
        return found[1:]

    def loop_while(
        self,
        starts: Sequence[tuple[str, Reg]],
        holds: Callable[..., Reg],
        body: Callable[..., Sequence[Reg]],
        stem: str = "body",
    ) -> list[Reg]:
        """Repeat a body while a condition on the carried values holds; return the last of them.

        The carried values have names and starts; `body` returns new ones.
        """
        before, head = self.block, self.new_label("head")
        inner, done = self.new_label(stem), self.new_label("done")
        self.jump(head)
        self.label(head)
        phis = [Reg(self.fresh(name), start.type) for name, start in starts]
        place = len(self.lines)
        self.branch(holds(*phis), inner, done)
        self.label(inner)
        results = body(*phis)
        last = self.block
        self.jump(head)
        self.lines[place:place] = [
            f"  {phi} = phi {phi.type} [ {start}, %{before} ], [ {result}, %{last} ]"
            for phi, (_, start), result in zip(phis, starts, results, strict=True)
        ]
        self.label(done)
        return phis

    def on_thread(self, number: int, body: Callable[[], None]) -> None:
        """Run a body on one thread only."""
        self.when(self.compare("eq", self.arguments["tid"], Reg(str(number), "i64")), body)

    def when(self, condition: Reg, body: Callable[[], None]) -> None:
        """Run a body only if a condition holds."""
        yes, done = self.new_label("then"), self.new_label("done")
        self.branch(condition, yes, done)
        self.label(yes)
        body()
        self.jump(done)
        self.label(done)


_SHORT = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}


def mangled(type_: str) -> str:
    """A type as intrinsics spell it: v16f32."""
    if type_.startswith("<"):
        lanes, element = type_[1:-1].split(" x ")
        return f"v{lanes}{_SHORT.get(element, element)}"
    return _SHORT.get(type_, type_)


def transposed(b: Builder, rows: Sequence[Reg]) -> list[Reg]:
    """Transpose as many rows as they have lanes: halves are swapped, then their halves."""
    made = list(rows)
    lanes = len(made)
    step = lanes // 2
    while step:
        # Blocks (i, j) and (j, i) of this size are swapped.
        for i in range(lanes):
            if i & step:
                continue
            low, high = made[i], made[i + step]
            first = [k if not k & step else lanes + k - step for k in range(lanes)]
            second = [k + step if not k & step else lanes + k for k in range(lanes)]
            made[i], made[i + step] = b.shuffle(low, high, first), b.shuffle(low, high, second)
        step //= 2
    return made
