"""Kernels cut at their barriers, so that awake threads can divide each piece.

A barrier inside a kernel needs all threads at once. Where every path through the kernel crosses it
exactly once, the kernel is two kernels with the barrier between them. What the second piece needs
of the first is computed again, if it is arithmetic of arguments; otherwise the kernel stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from monograph.codegen.llvm.module.kernel import Kernel

BARRIER = "call void @barrier("
_HEAD = re.compile(r"define void @\S+\(.*\) .*\{$")
_LABEL = re.compile(r"([\w.]+):$")
_TARGET = re.compile(r"label %([\w.]+)")
_SET = re.compile(r"(%[\w.]+) = ")
_REG = re.compile(r"%[\w.]+")
_PURE = (
    r"(getelementptr|add|sub|mul|[us]div|[us]rem|shl|[la]shr|and|or|xor|icmp|select|[zs]ext|trunc"
    r"|ptrtoint|inttoptr) "
)
_ARITHMETIC = re.compile(rf"%\S+ = {_PURE}")
_SIZE = re.compile(r"%size\.\d+ = load i64, ptr %size\.at\.\d+")
"""A load from the table of open sizes, which no kernel writes."""
_EXTREME = re.compile(r"%\S+ = call i64 @llvm\.[su](min|max)\.i64\(")


def meets(kernel: Kernel) -> bool:
    """Return True if threads wait for each other inside a kernel."""
    return BARRIER in kernel.text


def phases(kernel: Kernel) -> list[Kernel]:
    """Return the pieces of a kernel; the kernel itself if it has no barrier or cannot be cut."""
    made = [kernel]
    while meets(made[-1]):
        cut = _cut(made[-1].text)
        if cut is None:
            return [kernel]
        made[-1:] = [replace(made[-1], text=text) for text in cut]
    return made


@dataclass(frozen=True)
class _Block:
    label: str
    lines: tuple[str, ...]

    @property
    def targets(self) -> list[str]:
        return _TARGET.findall(self.lines[-1])


def _cut(text: str) -> tuple[str, str] | None:
    """Cut a function at its first barrier on every path."""
    head, *body = text.rstrip().splitlines()
    if text.count("define ") != 1 or not _HEAD.match(head) or body[-1] != "}":
        return None
    blocks = _blocks(body[:-1])
    for at, block in blocks.items():
        if any(BARRIER in line for line in block.lines) and _on_every_path(blocks, at):
            return _pieces(head, blocks, at)
    return None


def _blocks(body: Sequence[str]) -> dict[str, _Block]:
    found: dict[str, list[str]] = {}
    for line in body:
        if label := _LABEL.match(line):
            lines = found.setdefault(label[1], [])
        else:
            lines.append(line)
    return {label: _Block(label, tuple(lines)) for label, lines in found.items()}


def _reached(blocks: Mapping[str, _Block], starts: Sequence[str], without: str) -> set[str]:
    """Return the blocks that paths from some blocks reach, without entering one of them."""
    found: set[str] = set()
    stack = list(starts)
    while stack:
        label = stack.pop()
        if label not in found and label != without:
            found.add(label)
            stack += blocks[label].targets
    return found


def _on_every_path(blocks: Mapping[str, _Block], at: str) -> bool:
    """Return True if every path through the function enters a block exactly once."""
    first = next(iter(blocks))
    around = set() if at == first else _reached(blocks, [first], at)
    after = _reached(blocks, blocks[at].targets, "")
    returns = any(blocks[label].lines[-1].strip() == "ret void" for label in around)
    return not returns and at not in after


def _pieces(head: str, blocks: Mapping[str, _Block], at: str) -> tuple[str, str] | None:
    first = next(iter(blocks))
    lines = blocks[at].lines
    here = next(i for i, line in enumerate(lines) if BARRIER in line)
    before = {} if at == first else {n: blocks[n] for n in blocks if n in _before(blocks, at)}
    before[at] = _Block(at, (*lines[:here], "  ret void"))
    start = "after.barrier"
    after = {start: _Block(start, lines[here + 1 :])}
    reached = _reached(blocks, blocks[at].targets, "")
    after |= {n: _renamed(block, at, start) for n, block in blocks.items() if n in reached}
    needed = _recomputed(before, after)
    if needed is None:
        return None
    entry = _Block("entry", (*needed, f"  br label %{start}"))
    return _text(head, before.values()), _text(head, [entry, *after.values()])


def _before(blocks: Mapping[str, _Block], at: str) -> set[str]:
    return _reached(blocks, [next(iter(blocks))], at)


def _renamed(block: _Block, old: str, new: str) -> _Block:
    """Return a block whose phis name another predecessor."""
    lines = [re.sub(rf"%{re.escape(old)} \]", f"%{new} ]", line) for line in block.lines]
    return replace(block, lines=tuple(lines))


def _recomputed(before: Mapping[str, _Block], after: Mapping[str, _Block]) -> list[str] | None:
    """Return the lines of the first piece that the second one repeats; None if it cannot."""
    order = [line for block in before.values() for line in block.lines]
    made = {m[1]: i for i, line in enumerate(order) if (m := _SET.match(line.strip()))}
    own = {m[1] for b in after.values() for line in b.lines if (m := _SET.match(line.strip()))}
    stack = [r for b in after.values() for line in b.lines for r in _uses(line) if r not in own]
    found: set[int] = set()
    while stack:
        name = stack.pop()
        if name not in made or made[name] in found:
            continue
        line = order[made[name]]
        if not _is_pure(line.strip()):
            return None
        found.add(made[name])
        stack += _uses(line)
    return [order[i] for i in sorted(found)]


def _uses(line: str) -> Iterator[str]:
    yield from _REG.findall(line.partition(" = ")[2] or line)


def _is_pure(line: str) -> bool:
    return any(p.match(line) for p in (_ARITHMETIC, _SIZE, _EXTREME))


def _text(head: str, blocks: Iterable[_Block]) -> str:
    parts = ["\n".join([f"{block.label}:", *block.lines]) for block in blocks]
    return "\n".join([head, *parts, "}", ""])
