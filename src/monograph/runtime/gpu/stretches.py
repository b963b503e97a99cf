"""Runs with steps on the host in between: what the device does between two of them is one graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from monograph.runtime.gpu.attempts import Attempts
from monograph.runtime.gpu.capture import every_record
from monograph.runtime.gpu.launches import Launches
from monograph.runtime.gpu.recorded import Maker, Recorded
from monograph.runtime.gpu.running import Running

MISALIGNED = "it is misaligned for a library"


class Stretch:
    """Some launches of an executable in a row, as what records them sees an executable."""

    def __init__(self, executable: Running, start: int, stop: int) -> None:
        self._records = executable._records[start:stop]
        inside = {id(r) for r in every_record(self._records)}
        self._ports = [p for p in executable._ports if id(p[1]) in inside]
        self._lock = executable._lock
        self.layout = executable.layout
        self.device = executable.device
        self.ports = {p[0] for p in self._ports}


class Stretches:
    """The graphs of an executable that is not one launch."""

    def __init__(self, launches: Launches, attempts: Attempts) -> None:
        self._launches = launches
        self._attempts = attempts
        self._seen: dict[tuple[int, int], tuple[Stretch, Maker]] = {}

    @property
    def launches(self) -> int:
        """Launches of a run by the host, as far as they are known."""
        made = self._launches.made
        return sum(1 if s in made else s[1] - s[0] for s in self._seen)

    def launch(self, start: int, stop: int, ports: Mapping[str, torch.Tensor], stream: int) -> None:
        """Enqueues what lies between two steps of the host."""
        executable = self._launches.executable
        if start == stop:
            return
        if (start, stop) not in self._seen:
            made: Any = Stretch(executable, start, stop)
            self._seen[start, stop] = made, Maker(made, self._launches.graphs, partly=True)
        stretch, maker = self._seen[start, stop]
        memory = {n: t for n, t in ports.items() if n in stretch.ports}
        recorded = self._launches.made.get((start, stop))
        if recorded is None and self._attempts.wanted():
            recorded = self._attempts.attempt(lambda: maker.make(memory))
            if recorded is not None:
                self._launches.made[start, stop] = recorded
        if recorded is not None:
            launch_on(self._launches, recorded, memory, stream, in_part=True)
            return
        for port, record, position, offset in stretch._ports:
            record.point(position, ports[port], offset)
        for record in stretch._records:
            record.launch(stream)


def launch_on(
    launches: Launches,
    recorded: Recorded,
    memory: Mapping[str, torch.Tensor],
    stream: int,
    in_part: bool = False,
) -> None:
    """Launches a graph on some memory; what is misaligned for it is copied to where it is not.

    in_part: another graph may have written a part of an output before.
    """
    placed = dict(memory)
    given = {t.data_ptr() for n, t in memory.items() if not n.startswith("output:")}
    back = []
    for name, tensor in memory.items():
        if not tensor.data_ptr() % recorded.aligned[name]:
            continue
        placed[name] = own = torch.empty_like(tensor)
        launches.counts.staged[f"{name.partition(':')[2]}: {MISALIGNED}"] += 1
        made = name.startswith("output:")
        # Of what is written over an input, kernels may write some rows only.
        if in_part or not made or tensor.data_ptr() in given:
            own.copy_(tensor)
        if made:
            back.append((tensor, own))
    launches.launch(recorded, [placed[n].data_ptr() for n in recorded.names], stream)
    for to, source in back:
        to.copy_(source)
