"""Pointer parameters of library kernels, found by a comparison of captures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monograph.runtime.gpu.driver.graphs import Params


@dataclass(frozen=True)
class Moved:
    """The addresses of a buffer in two captures."""

    first: int
    second: int
    nbytes: int

    @property
    def distance(self) -> int:
        return self.second - self.first


@dataclass(frozen=True)
class Word:
    """Eight bytes of a node's parameters that point into a port."""

    node: int
    blob: int
    at: int
    port: str
    offset: int


def compare(
    first: Sequence[Params | None], second: Sequence[Params | None], moved: Mapping[str, Moved]
) -> list[Word] | str:
    """The words of one call's nodes that move with ports, or why that cannot be told."""
    if len(first) != len(second):
        return "it launches differently from time to time"
    found: list[Word] = []
    for node, (a, b) in enumerate(zip(first, second, strict=True)):
        if a is None or b is None:
            return "it launches what cannot be read"
        if (a.kind, a.function, a.shape) != (b.kind, b.function, b.shape):
            return "it chooses its kernels by address"
        pairs = list(zip(a.bytes(), b.bytes(), strict=False))
        if [len(x) for x in a.blobs] != [len(x) for x in b.blobs]:
            return "its parameters differ in size from time to time"
        for blob, (x, y) in enumerate(pairs):
            words = _words(x, y, moved)
            if words is None:
                return "its parameters depend on addresses in more than plain words"
            found += [Word(node, blob, at, port, offset) for at, port, offset in words]
    return found


def _words(a: bytes, b: bytes, moved: Mapping[str, Moved]) -> list[tuple[int, str, int]] | None:
    """The words that differ, each by one port's distance; None if something else differs."""
    found, at = [], 0
    while at < len(a):
        x, y = (int.from_bytes(blob[at : at + 8], "little") for blob in (a, b))
        port = _port(x, y, moved) if x != y and at + 8 <= len(a) else None
        if port is not None:
            found.append((at, port, x - moved[port].first))
            at += 8
        elif a[at : at + 4] != b[at : at + 4]:
            return None
        else:
            at += 4
    return found


def _port(x: int, y: int, moved: Mapping[str, Moved]) -> str | None:
    """The one port that two words can point into."""
    fitting = [
        name
        for name, m in moved.items()
        if y - x == m.distance and m.first <= x <= m.first + m.nbytes
    ]
    return fitting[0] if len(fitting) == 1 else None


def predict_params(
    first: Sequence[Params], words: Sequence[Word], addresses: Mapping[str, int]
) -> list[list[bytes]]:
    """The parameters that a recording at other addresses must have, if the words are right."""
    made = [[bytearray(b) for b in p.bytes()] for p in first]
    for word in words:
        value = addresses[word.port] + word.offset
        made[word.node][word.blob][word.at : word.at + 8] = value.to_bytes(8, "little")
    return [[bytes(b) for b in blobs] for blobs in made]


def distinct_addresses(
    sizes: Mapping[str, int], starts: Sequence[Mapping[str, int]], base: int
) -> dict[str, int]:
    """Addresses behind a base whose distances to every earlier one are all different.

    Each is aligned as the first was: libraries choose kernels by alignment.
    """
    found: dict[str, int] = {}
    at = base
    taken: list[set[int]] = [set() for _ in starts]
    for name, nbytes in sizes.items():
        low = starts[0][name] % ALIGNED
        at += (low - at) % ALIGNED
        while any(at - s[name] in t for s, t in zip(starts, taken, strict=True)):
            at += ALIGNED
        for s, t in zip(starts, taken, strict=True):
            t.add(at - s[name])
        found[name] = at
        at += nbytes + ALIGNED
    return found


ALIGNED = 256
"""Beyond this alignment no library looks."""
