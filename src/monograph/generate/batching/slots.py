"""The slots of a cache: which sequence has each, and which tokens its rows hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from monograph.errors import ConfigError
from monograph.ir.memory import machine_memory, resident

MIN_COPIED = 16
"""The fewest rows that are copied from another slot: fewer are computed as quickly."""


@dataclass
class Slot:
    """One sequence's rows of the cache."""

    number: int
    tokens: list[int] = field(default_factory=list)
    """The tokens whose rows are valid, of the sequence that has or had the slot."""
    used: bool = False
    released: int = 0
    """The number of releases when its last sequence left."""


@dataclass(frozen=True)
class Placement:
    """The slot of a new sequence, and the rows that need not be computed."""

    slot: Slot
    reused: int
    copied_from: Slot | None = None


class Slots:
    """The slots; a new sequence gets the one whose rows help it most."""

    def __init__(self, count: int) -> None:
        self.all = [Slot(n) for n in range(count)]
        self._releases = 0

    @property
    def free(self) -> int:
        return sum(not s.used for s in self.all)

    def place(self, prompt: Sequence[int]) -> Placement | None:
        """Give a slot to a prompt; None if all are used.

        At least one token of the prompt is left to compute.
        """
        free = [s for s in self.all if not s.used]
        if not free:
            return None
        most = len(prompt) - 1
        shared = {s.number: min(common(s.tokens, prompt), most) for s in self.all}
        own = max(free, key=lambda s: (shared[s.number], -len(s.tokens), -s.released, -s.number))
        best = max(self.all, key=lambda s: shared[s.number])
        if shared[own.number] > 0 and shared[best.number] - shared[own.number] < MIN_COPIED:
            return self._given(Placement(own, shared[own.number]))
        # The lowest empty slot keeps used ones together; else the one that is unused longest.
        slot = min(free, key=lambda s: (bool(s.tokens), s.released, s.number))
        if shared[best.number] >= MIN_COPIED:
            return self._given(Placement(slot, shared[best.number], best))
        return self._given(Placement(slot, 0))

    def _given(self, placement: Placement) -> Placement:
        slot = placement.slot
        source = placement.copied_from or slot
        slot.tokens = list(source.tokens[: placement.reused])
        slot.used = True
        return placement

    def release(self, slot: Slot, valid: bool) -> None:
        """Give a slot back; its rows stay for prompts that begin alike, if they are valid."""
        slot.used = False
        self._releases += 1
        slot.released = self._releases
        if not valid:
            slot.tokens = []


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def check_memory(slots: int, maximum: int, row_bytes: int, free: int | None) -> int:
    """Return the bytes of the caches; raise an error if they do not fit.

    free: the free bytes of a device; None for the host's memory.
    """
    needed = slots * maximum * row_bytes
    room = machine_memory() - resident() if free is None else free
    if needed > room:
        each = maximum * row_bytes
        raise ConfigError(
            "the caches do not fit the memory",
            expected=f"at most {_mebibytes(room)} free",
            given=f"{slots} slots of {maximum} tokens: {_mebibytes(needed)}",
            hint=f"a slot takes {_mebibytes(each)}: use at most {max(room // each, 0)} slots, or "
            "less max_length",
        )
    return needed


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def row_buckets(slots: int) -> tuple[int, ...]:
    """Return the numbers of rows that steps have: powers of two, and all slots."""
    sizes = []
    size = 1
    while size < slots:
        sizes.append(size)
        size *= 2
    return (*sizes, slots)


def window(numbers: Sequence[int], buckets: Sequence[int], slots: int) -> tuple[int, int]:
    """Return the first slot and the rows of the smallest step that has these slots."""
    low, high = min(numbers), max(numbers)
    rows = next(b for b in buckets if b > high - low)
    return min(low, slots - rows), rows
