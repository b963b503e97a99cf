"""Bounds checks for every address that a kernel computes: the checked mode.

The text of a finished function is instrumented. Every pointer in it is derived from an argument or
from the stack. Before a load or a store, the offset is compared with the size of the buffer. An
access outside is reported as a fault of Monograph and redirected to a dummy on the stack, so that
the process continues. Accesses of one block at constant distances share a check.

An instruction with an unknown pointer raises an error: nothing escapes the checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from monograph.errors import InternalError
from monograph.ir.sizes import is_open, proven

GUARD = "guard"
"""The argument that violations are reported to: two words, like any fault."""
DUMMY = "%checked.dummy"
STACK = "the stack"
SLACK = 256
"""Bytes that vectors may read beyond the end of the arena and of the constants."""
SLACK_MARK = "; slack"
"""Marks a load whose last lanes may be beyond the buffer and are never used."""
READS_MARK = "; reads "
"""Marks a masked load with the bytes that it reads."""
SIZES = "%sizes"
"""The table of open sizes, of which only its own entries are read."""
SPANS_MARK = "; spans "
"""Marks a call with the bytes that it accesses from each pointer, as low:high."""

_GEP = re.compile(r"(%\S+) = getelementptr inbounds i8, ptr (%\S+), i64 (\S+)$")
_ALLOCA = re.compile(r"(%\S+) = alloca \[(\d+) x (.+)\], align")
_PHI = re.compile(r"(%\S+) = phi ptr (.*)$")
_INCOMING = re.compile(r"\[ (\S+), (%\S+) \]")
_SELECT = re.compile(r"(%\S+) = select i1 (\S+), ptr (%\S+), ptr (%\S+)$")
_INTEGER = re.compile(r"(%\S+) = (add|sub|mul) (?:nsw )?i64 (\S+), (\S+)$")
_LOAD = re.compile(r"%\S+ = load (?:atomic )?(<[^>]*>|\S+), ptr (%[^\s,]+)")
_STORE = re.compile(r"store (?:atomic )?(<[^>]*>|\S+) .*, ptr (%[^\s,]+)(?:,| )")
_ATOMIC = re.compile(r"%\S+ = atomicrmw \w+ ptr (%[^\s,]+), (\w+)")
_MASKED = re.compile(
    r"call (<[^>]*>) @llvm\.masked\.load\S+\(ptr (%[^\s,]+), .*?<((?:i1 \w+,? ?)+)>"
)
_READS = re.compile(r"llvm\.masked\.load\S+\(ptr (%[^\s,]+), .* ; reads (\S+)$")
_FILL = re.compile(r"call void @llvm\.memset\S+\(ptr (%[^\s,]+), i8 \S+, i64 (\S+), ")
_COPY = re.compile(r"call void @llvm\.memcpy\S+\(ptr (%[^\s,]+), ptr (%[^\s,]+), i64 (\S+), ")
_LENGTH = re.compile(r"i64 (\S+), i1")
"""The length of what is filled or copied."""
_CALL = re.compile(r"call void @\S+?\((.*)\) ; spans (.*)$")
_ANY = re.compile(r"\bptr\b")
_HARMLESS = ("call void @barrier(", "call void @llvm.prefetch.")
_WIDTHS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}


@dataclass(frozen=True)
class Extent:
    """The bytes that may be accessed from a pointer: low .. high - 1."""

    high: int
    label: str = ""
    slack: bool = False
    """True if vectors may read `SLACK` bytes beyond it: the program's own memory follows."""
    low: int = 0


def bytes_of(type_: str) -> int:
    """The bytes that a value of a type takes in memory."""
    lanes, element = 1, type_
    if type_.startswith("<"):
        count, element = type_[1:-1].split(" x ")
        lanes = int(count)
    width = _WIDTHS[element] if element in _WIDTHS else int(element[1:])
    return -(-lanes * width // 8)


@dataclass(frozen=True)
class _Access:
    """Bytes low .. high - 1 from a pointer, by the instruction at a line."""

    line: int
    pointer: str
    high: int
    low: int = 0
    slack: bool = False
    count: str = ""
    """The register with the number of bytes, if it is no literal."""
    whole: bool = False
    """True for a call that gets the pointer: a violation redirects it to the buffer's start."""


Linear = tuple[frozenset[tuple[str, int]], int]
"""Registers times factors, and a constant."""


@dataclass(frozen=True)
class _Pointer:
    """The origin of a pointer: a base, and the offset from there."""

    base: str
    moved: Linear


@dataclass
class _Group:
    """Accesses of one block at constant distances."""

    first: _Access
    constant: int
    low: int
    high: int
    members: list[_Access] = field(default_factory=list)
    bad: str = ""


class Instrumented:
    """The lines of one function, with a check before every access."""

    def __init__(
        self,
        lines: Sequence[str],
        extents: Mapping[str, Extent],
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """sizes: the open sizes that spans name, by their texts."""
        self.lines = list(lines)
        self.sizes = sizes
        self.extents = dict(extents)
        self.numbers = {base: k for k, base in enumerate(extents, 1)}
        self.pointers: dict[str, _Pointer] = {}
        self.integers: dict[str, Linear] = {}
        self.merged: dict[str, tuple[str, ...]] = {}
        """Pointers that are one of several, with their alternatives."""
        self.shadowed: dict[str, None] = {}
        self.count = 0
        self.checks = 0
        self.dummy_bytes = 64

    def text(self) -> list[str]:
        """The instrumented lines."""
        for line in self.lines:
            self._derive(line.strip())
        blocks = list(self._blocks())
        made = [new for start, stop in blocks for new in self._block(start, stop)]
        entry = [f"  {DUMMY} = alloca [{self.dummy_bytes} x i8], align 64"]
        given = [b for b, extent in self.extents.items() if extent.label != STACK]
        entry += [f"  {b}.int = ptrtoint ptr {b} to i64" for b in given]
        return [*entry, *self._with_shadows(made)]

    # Where pointers come from

    def _derive(self, line: str) -> None:
        if found := _GEP.match(line):
            name, source, by = found.groups()
            origin, moved = self._pointer(source), self._integer(by)
            self.pointers[name] = _Pointer(origin.base, _sum(origin.moved, moved, 1))
        elif found := _INTEGER.match(line):
            self._derive_integer(*found.groups())
        elif found := _PHI.match(line):
            self.merged[found[1]] = tuple(v for v, _ in _INCOMING.findall(found[2]))
        elif found := _SELECT.match(line):
            self.merged[found[1]] = (found[3], found[4])
        elif found := _ALLOCA.match(line):
            self.extents[found[1]] = Extent(int(found[2]) * bytes_of(found[3]), STACK)
            self.numbers[found[1]] = 0

    def _derive_integer(self, name: str, how: str, x: str, y: str) -> None:
        a, b = self._integer(x), self._integer(y)
        if how != "mul":
            self.integers[name] = _sum(a, b, 1 if how == "add" else -1)
        elif not a[0] or not b[0]:
            (terms, constant), by = (b, a[1]) if not a[0] else (a, b[1])
            scaled = frozenset((r, f * by) for r, f in terms if f * by)
            self.integers[name] = (scaled, constant * by)

    def _integer(self, text: str) -> Linear:
        if not text.startswith("%"):
            return frozenset(), int(text)
        return self.integers.get(text, (frozenset({(text, 1)}), 0))

    def _pointer(self, name: str) -> _Pointer:
        if name in self.pointers:
            return self.pointers[name]
        # Not an argument but one of several. Which one, and its base, is known at the end.
        moved = (frozenset(), 0) if name in self.extents else (frozenset({(name, 1)}), 0)
        return _Pointer(name, moved)

    def _base(self, name: str) -> str:
        """Return the argument that a pointer comes from; itself if it may come from several."""
        if name in self.extents:
            return name
        found = set(self._bases(name, set()))
        if not found:
            raise InternalError("a pointer has no known base", given=name)
        if len(found) == 1:
            return found.pop()
        self.shadowed[name] = None
        return name

    def _bases(self, name: str, seen: set[str]) -> Iterator[str]:
        origin = self._pointer(name).base
        if origin in self.extents:
            yield origin
        elif origin not in seen:
            seen.add(origin)
            for source in self.merged.get(origin, ()):
                yield from self._bases(source, seen)

    # Accesses

    def _blocks(self) -> Iterator[tuple[int, int]]:
        start = 0
        for k, line in enumerate(self.lines):
            if not line.startswith(" "):
                yield start, k
                start = k
        yield start, len(self.lines)

    def _accesses(self, k: int) -> list[_Access]:
        line = self.lines[k].strip()
        if found := _LOAD.match(line):
            return [_Access(k, found[2], bytes_of(found[1]), slack=SLACK_MARK in line)]
        if found := _STORE.match(line):
            return [_Access(k, found[2], bytes_of(found[1]))]
        if _ANY.search(line) is None or any(p.match(line) for p in (_GEP, _PHI, _SELECT)):
            return []
        if found := _ATOMIC.match(line):
            return [_Access(k, found[1], bytes_of(found[2]))]
        if found := _READS.search(line):
            return [_counted(k, found[1], found[2])]
        if found := _MASKED.search(line):
            lanes = [i for i, one in enumerate(found[3].split(", ")) if one == "i1 true"]
            element = found[1][1:-1].split(" x ")[1]
            return [_Access(k, found[2], (max(lanes, default=-1) + 1) * bytes_of(element))]
        if found := _FILL.search(line):
            return [_counted(k, found[1], found[2])]
        if found := _COPY.search(line):
            return [_counted(k, p, found[3]) for p in (found[1], found[2])]
        if found := _CALL.search(line):
            pointers = re.findall(r"ptr (%[^\s,)]+)", found[1])
            spans = [tuple(map(self._number, s.split(":"))) for s in found[2].split()]
            given = [p for p in pointers if p not in (f"%{GUARD}", SIZES)]
            pairs = zip(given, spans, strict=True)
            return [_Access(k, p, high, low, whole=True) for p, (low, high) in pairs]
        if line.startswith(_HARMLESS):
            return []
        raise InternalError("an instruction uses a pointer without a check", given=line)

    def _number(self, text: str) -> int:
        found = self.sizes.get(text)
        return int(text) if found is None else found

    # Checks

    def _block(self, start: int, stop: int) -> Iterator[str]:
        groups: dict[object, _Group] = {}
        grouped: dict[int, list[tuple[_Access, _Group | None]]] = {}
        for k in range(start, stop):
            for access in self._accesses(k):
                grouped.setdefault(k, []).append((access, self._grouped(access, groups)))
        for k in range(start, stop):
            line = self.lines[k].replace("getelementptr inbounds", "getelementptr")
            for access, group in grouped.get(k, ()):
                if group is None:
                    continue
                if not group.bad:
                    yield from self._check(group)
                before, line = self._redirected(access, group, line)
                yield from before
            yield line
            if found := _ALLOCA.match(line.strip()):
                yield f"  {found[1]}.int = ptrtoint ptr {found[1]} to i64"

    def _grouped(self, access: _Access, groups: dict[object, _Group]) -> _Group | None:
        """Return the group of an access; None for an access that is proven."""
        pointer = self._pointer(access.pointer)
        base = self._base(pointer.base)
        terms, constant = pointer.moved
        extent = self.extents.get(base)
        if not terms and extent is not None and not access.count:
            low, high = constant + access.low, constant + access.high
            if proven(extent.low, "<=", low) and proven(high, "<=", _limit(extent, access)):
                return None
        key: object = (base, terms, access.slack)
        if access.count or access.whole:
            key = access
        low, high = constant + access.low, constant + access.high
        group = groups.setdefault(key, _Group(access, constant, low, high))
        group.low, group.high = min(group.low, low), max(group.high, high)
        group.members.append(access)
        return group

    def _fresh(self, stem: str) -> str:
        self.count += 1
        return f"%checked.{stem}{self.count}"

    def _check(self, group: _Group) -> Iterator[str]:
        """Emit the check of a group against its buffer, and the report."""
        first = group.first
        base = self._base(self._pointer(first.pointer).base)
        extent = self.extents.get(base)
        at, moved, bad, where, second = (self._fresh(s) for s in ("p", "o", "bad", "w", "w"))
        self.checks += 1
        group.bad = bad
        shift = group.low - group.constant - (extent.low if extent is not None else 0)
        yield f"  {at} = ptrtoint ptr {first.pointer} to i64"
        start = f"{base}.int" if extent is not None else f"{base}.base"
        apart = self._fresh("d")
        yield f"  {apart} = sub i64 {at}, {start}"
        yield f"  {moved} = add i64 {apart}, {shift}"
        size = group.high - group.low
        if extent is not None and not first.count:
            room = _limit(extent, first) - extent.low - size
            if is_open(room):
                # A buffer may be smaller than the access: then no place in it is right.
                far, small = self._fresh("f"), self._fresh("n")
                yield f"  {far} = icmp ugt i64 {moved}, {room}"
                yield f"  {small} = icmp slt i64 {room}, 0"
                yield f"  {bad} = or i1 {far}, {small}"
            else:
                right = f"ugt i64 {moved}, {room}" if room >= 0 else "eq i64 0, 0"
                yield f"  {bad} = icmp {right}"
        else:
            yield from self._check_counted(first, base, extent, moved, size, bad)
        number = self.numbers.get(base, 0)
        yield f"  {where} = select i1 {bad}, ptr %{GUARD}, ptr {DUMMY}"
        yield f"  {second} = getelementptr i8, ptr {where}, i64 8"
        yield f"  store i64 {moved}, ptr {second}, align 8"
        yield f"  store i64 {1 + number}, ptr {where}, align 8"

    def _check_counted(
        self, first: _Access, base: str, extent: Extent | None, moved: str, size: int, bad: str
    ) -> Iterator[str]:
        """The same if the accessed bytes, or those of the buffer, are no literal."""
        high = f"{base}.extent" if extent is None else str(extent.high - extent.low)
        over, end, far = (self._fresh(s) for s in ("n", "e", "f"))
        yield f"  {over} = icmp ugt i64 {moved}, {high}"
        yield f"  {end} = add i64 {moved}, {first.count or size}"
        yield f"  {far} = icmp ugt i64 {end}, {high}"
        yield f"  {bad} = or i1 {over}, {far}"

    def _redirected(self, access: _Access, group: _Group, line: str) -> tuple[list[str], str]:
        """Return the instruction, redirected to harmless memory if the check fails."""
        masked = READS_MARK in line
        moves = _LENGTH.search(line) is not None and (access.count or access.high > 256)
        if not masked and (access.whole or moves):
            # A pointer argument is redirected to its buffer's start, and no bytes are moved.
            return self._without(access, group, line)
        self.dummy_bytes = max(self.dummy_bytes, access.high)
        safe = self._fresh("s")
        made = f"  {safe} = select i1 {group.bad}, ptr {DUMMY}, ptr {access.pointer}"
        return [made], _replaced(line, access.pointer, safe)

    def _without(self, access: _Access, group: _Group, line: str) -> tuple[list[str], str]:
        safe = self._fresh("s")
        if not access.whole:
            found = _LENGTH.search(line)
            assert found is not None
            made = f"  {safe} = select i1 {group.bad}, i64 0, i64 {found[1]}"
            return [made], line.replace(found[0], f"i64 {safe}, i1")
        base = self._base(self._pointer(access.pointer).base)
        lines = []
        if base not in self.extents:
            start = self._fresh("b")
            lines.append(f"  {start} = inttoptr i64 {base}.base to ptr")
            base = start
        lines.append(f"  {safe} = select i1 {group.bad}, ptr {base}, ptr {access.pointer}")
        return lines, _replaced(line, access.pointer, safe)

    # Pointers that may come from several arguments

    def _with_shadows(self, lines: list[str]) -> list[str]:
        """Add the base and the size of each such pointer, selected like the pointer."""
        done: set[str] = set()
        while missing := [p for p in self.shadowed if p not in done]:
            for name in missing:
                done.add(name)
                for source in self.merged[name]:
                    self._base(self._pointer(source).base)
        if not done:
            return lines
        made: list[str] = []
        for line in lines:
            made.append(line)
            found = _PHI.match(line.strip()) or _SELECT.match(line.strip())
            if found and found[1] in done:
                made.extend(self._shadow(line.strip(), found[1]))
        return made

    def _shadow(self, line: str, name: str) -> Iterator[str]:
        select = _SELECT.match(line)
        for which in ("base", "extent"):
            if select is not None:
                x, y = (self._shadow_of(v, which) for v in (select[3], select[4]))
                yield f"  {name}.{which} = select i1 {select[2]}, i64 {x}, i64 {y}"
                continue
            found = _PHI.match(line)
            assert found is not None
            incoming = ", ".join(
                f"[ {self._shadow_of(v, which)}, {label} ]"
                for v, label in _INCOMING.findall(found[2])
            )
            yield f"  {name}.{which} = phi i64 {incoming}"

    def _shadow_of(self, pointer: str, which: str) -> str:
        base = self._base(self._pointer(pointer).base)
        if base not in self.extents:
            return f"{base}.{which}"
        return f"{base}.int" if which == "base" else str(self.extents[base].high)


def _sum(a: Linear, b: Linear, sign: int) -> Linear:
    factors = dict(a[0])
    for register, factor in b[0]:
        factors[register] = factors.get(register, 0) + sign * factor
    return frozenset((r, f) for r, f in factors.items() if f), a[1] + sign * b[1]


def _limit(extent: Extent, access: _Access) -> int:
    return extent.high + (SLACK if access.slack and extent.slack else 0)


def _counted(line: int, pointer: str, count: str) -> _Access:
    if count.startswith("%"):
        return _Access(line, pointer, 0, count=count)
    return _Access(line, pointer, int(count))


def _replaced(line: str, pointer: str, by: str) -> str:
    return re.sub(rf"ptr {re.escape(pointer)}(?![\w.])", f"ptr {by}", line, count=1)
