"""A graph that is ready to be launched, and whose ports can move.

No driver changes nodes inside a branch or a loop, and not every library says where its addresses
are. Ports of such a graph are staged: the graph has memory of its own for them, with copies at both
ends. The copies are nodes that can move, so a run is still one launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monograph.codegen.triton.module.launch import ARENA, KEPT
from monograph.runtime.gpu.bound_program import VECTOR
from monograph.runtime.gpu.build.stream_tuning import StreamTuner
from monograph.runtime.gpu.capture.capture import (
    Copies,
    Memory,
    Place,
    Recordable,
    Recorder,
    Recording,
    every_record,
    held_ports,
    inner_ports,
    own_ports,
    places_of,
)
from monograph.runtime.gpu.capture.control import ConditionalLaunch
from monograph.runtime.gpu.capture.pointer_params import (
    ALIGNED,
    Moved,
    Word,
    compare,
    distinct_addresses,
    predict_params,
)
from monograph.runtime.gpu.driver.devices import Launched
from monograph.runtime.gpu.driver.graphs import (
    MEMCPY,
    ON_DEVICE,
    CopyNode,
    GraphError,
    Graphs,
    Handle,
    Params,
)

INSIDE = "a branch or a loop uses it"
SHARES = "what shares its memory is staged"
_TO, _SOURCE = 0, 8
"""The positions of the parameters of a copy."""


class Staging:
    """Memory in the place of ports, and what is copied there and back in every run.

    partners: by port, the one that lies in the same memory: of donated state, the other end.
    partly: whether another graph may have written a part of an output before.
    """

    def __init__(
        self,
        memory: Memory,
        reasons: Mapping[str, str],
        partners: Mapping[str, str],
        partly: bool = False,
    ) -> None:
        self.memory: dict[str, torch.Tensor] = {}
        for port in reasons:
            if port not in self.memory:
                both = (port, partners.get(port, ""))
                own = torch.empty_like(memory[port])
                self.memory |= {p: own for p in both if p in memory}
        self.told = [f"{p.partition(':')[2]}: {reasons.get(p, SHARES)}" for p in self.memory]
        """The copies of a run as they are counted: by port and reason."""
        self._before: dict[str, CopyNode] = {}
        self._after: dict[str, CopyNode] = {}
        filled: set[int] = set()
        for port, own in self.memory.items():
            here, there, nbytes = own.data_ptr(), memory[port].data_ptr(), own.numel()
            made = port.startswith("output:")
            if not nbytes:
                continue
            if (partly or not made) and here not in filled:
                filled.add(here)
                self._before[port] = CopyNode(here, there, nbytes, ON_DEVICE)
            if made:
                self._after[port] = CopyNode(there, here, nbytes, ON_DEVICE)

    def record(self, recorder: Recorder, memory: Memory) -> Recording:
        """The graph of a run on some memory: first what is copied in, last what is copied out."""
        before = {f"to {port}": copy for port, copy in self._before.items()}
        after = {f"from {port}": copy for port, copy in self._after.items()}
        return recorder.record({**memory, **self.memory}, before, after)

    def places(self, graphs: Graphs, taken: Recording) -> dict[str, list[Place]]:
        """Return the parameters of a graph's copies that hold port addresses."""
        found: dict[str, list[Place]] = {}
        for port, copy in self._before.items():
            node = taken.edges[f"to {port}"]
            found.setdefault(port, []).append(_place(graphs, node, copy, _SOURCE))
        for port, copy in self._after.items():
            node = taken.edges[f"from {port}"]
            found.setdefault(port, []).append(_place(graphs, node, copy, _TO))
        return found


def _place(graphs: Graphs, node: object, copy: CopyNode, at: int) -> Place:
    """One end of a copy, checked against the node that it has become."""
    params = graphs.read(node)
    if params is None or params.kind != MEMCPY:
        raise GraphError("a copy was not recorded as what it is")
    if (params.word(0, _TO).value, params.word(0, _SOURCE).value) != (copy.to, copy.source):
        raise GraphError("a recorded copy has other addresses than were copied")
    return params, params.word(0, at), 0


class CapturedGraph:
    """An executable graph, its addresses, and the words of its nodes that hold them."""

    captured = True
    """True if it was recorded or built, not rewritten from another."""

    def __init__(
        self,
        graphs: Graphs,
        taken: Recording,
        places: Mapping[str, Sequence[Place]],
        addresses: Mapping[str, int],
        executable: Handle | None = None,
    ) -> None:
        self.graphs = graphs
        self.taken = taken
        self.names = list(addresses)
        self.addresses = list(addresses.values())
        self.aligned = dict.fromkeys(addresses, VECTOR)
        """The alignment of the address of each port."""
        self.copied: list[str] = []
        """Its copies of ports that cannot move, as they are counted in every run."""
        self.kept: list[Any] = []
        """Memory that nodes point to: that of libraries, buffers for copies."""
        self.marked: set[int] = set()
        """Streams that its memory is known to be used on."""
        self.upload_address = 0
        """The address that inputs are copied to before a launch; 0 if the graph copies them."""
        self.overlapped = False
        """True if the graph is launched before the inputs arrive."""
        self.narrowed = False
        """True if some inputs are rounded during the upload."""
        self.writes = False
        """True if kernels write outputs into pinned memory of the host."""
        self._places = [list(places.get(name, ())) for name in self.names]
        self.executable = executable or graphs.instantiate(taken.graph)

    @property
    def memory(self) -> list[torch.Tensor]:
        """Memory of our own that nodes point to."""
        return [x for x in self.kept if isinstance(x, torch.Tensor)]

    @property
    def nodes(self) -> int:
        """Nodes of the graph, without those inside branches and loops."""
        return len(self.graphs.nodes(self.taken.graph))

    def rebind(self, addresses: list[int]) -> int:
        """Rebind the graph to other addresses; return the number of ports that moved."""
        moved = 0
        changed: dict[int, Params] = {}
        for number, address in enumerate(addresses):
            if address == self.addresses[number]:
                continue
            moved += 1
            for params, word, offset in self._places[number]:
                word.value = address + offset
                changed[id(params)] = params
        for params in changed.values():
            self.graphs.write(self.executable, params)
        self.addresses = addresses
        return moved

    def launch(self, stream: int) -> None:
        self.graphs.launch(self.executable, stream)

    def close(self) -> None:
        """Frees the graph now. What is in flight ends as it would."""
        self.executable.close()
        self.taken.graph.close()
        self.kept.clear()


class GraphBuilder:
    """Records the launches of an executable so that all its ports can move, or are staged.

    partly: whether other graphs take part in a run, and may have written a part of an output.
    """

    def __init__(
        self,
        executable: Recordable,
        graphs: Graphs,
        laned: StreamTuner | None = None,
        partly: bool = False,
    ) -> None:
        self.executable = executable
        self.graphs = graphs
        self.laned = laned
        self.partly = partly
        records = executable.records
        self.exact = [i for i, r in enumerate(records) if graphs.function(r) is not None]
        ports = own_ports(executable)
        self.foreign = [i for i in range(len(records)) if i not in set(self.exact) and ports[i]]
        """Launches of others that use ports."""
        self.foreign_ports = sorted({port for i in self.foreign for port, _, _ in ports[i]})
        self.inside = inner_ports(executable)
        state = [
            (f"input:{s.over}", f"output:{s.name}") for s in executable.layout.outputs if s.over
        ]
        self.partners = dict(state) | {output: given for given, output in state}
        self._warm = False

    @property
    def all_exact(self) -> bool:
        """True if every parameter that holds a port address is known without a comparison."""
        return not self.foreign and not self.inside

    def prepare(self, memory: Memory) -> None:
        """Do the extra work of first launches on scratch memory: loading, workspaces, plans."""
        if self._warm:
            return
        executable = self.executable
        for record in every_record(executable.records):
            self.graphs.prepare(record)
        others = [r for i, r in enumerate(executable.records) if i not in set(self.exact)]
        foreign = [r for r in others if not isinstance(r, ConditionalLaunch)]
        if foreign:
            self._launch_on_scratch(foreign, memory)
        self._warm = True

    def _launch_on_scratch(self, foreign: Sequence[Any], memory: Memory) -> None:
        """Launches of others, once each: no caller's memory and no state is any different then."""
        executable = self.executable
        launched = set(map(id, foreign))
        scratch = {n: torch.zeros_like(memory[n]) for n in self.foreign_ports}
        copies = {n: t.clone() for n, t in executable.held.items()}
        held = [p for p in held_ports(executable) if id(p[1]) in launched]
        # What has been found wrong in data stays so; in the middle of a run the rest does, too.
        kept = [executable.buffers[n] for n in ((KEPT, ARENA) if self.partly else (KEPT,))]
        saved = [m.clone() for m in kept]
        for port, record, position, offset in executable.port_arguments:
            if id(record) in launched:
                record.point(position, scratch[port], offset)
        for port, record, position, offset in held:
            record.point(position, copies[port], offset)
        try:
            stream = self.graphs.current()
            for record in foreign:
                record.launch(stream)
        finally:
            for port, record, position, offset in held:
                record.point(position, executable.held[port], offset)
            for here, before in zip(kept, saved, strict=True):
                here.copy_(before)

    def make(self, memory: Memory) -> CapturedGraph:
        """A graph of the launches, on the memory of a first run."""
        self.prepare(memory)
        recorder = self._recorder()
        reasons = dict.fromkeys(sorted(self.inside), INSIDE)
        staging = self._staging(memory, reasons)
        first = staging.record(recorder, memory)
        words: dict[int, list[Word]] = {}
        if self.foreign:
            moving = [n for n in self.foreign_ports if n not in staging.memory]
            words, doubtful = self._words(recorder, first, {**memory, **staging.memory}, moving)
            if doubtful:
                first.graph.close()
                staging = self._staging(memory, reasons | doubtful)
                first = staging.record(recorder, memory)
        return self._recorded(recorder, first, memory, words, staging)

    def _staging(self, memory: Memory, reasons: Mapping[str, str]) -> Staging:
        return Staging(memory, reasons, self.partners, self.partly)

    def _recorder(self) -> Recorder:
        order = None if self.laned is None else self.laned.order()
        return Recorder(self.executable, self.graphs, order)

    def fixed(self, memory: Memory, before: Copies, after: Copies) -> tuple[Recorder, Recording]:
        """A graph on memory that never moves, with copies before and after."""
        self.prepare(memory)
        for copy in before.values():
            self.graphs.prepare(copy)
        recorder = self._recorder()
        return recorder, recorder.record(memory, before, after)

    def _recorded(
        self,
        recorder: Recorder,
        taken: Recording,
        memory: Memory,
        words: Mapping[int, list[Word]],
        staging: Staging,
    ) -> CapturedGraph:
        placed = {**memory, **staging.memory}
        try:
            places = places_of(self.executable, self.graphs, taken, self.exact, placed)
            for number, found in words.items():
                params = self._read(taken, number)
                for w in found:
                    if w.port in staging.memory:
                        continue
                    owner = params[w.node]
                    assert owner is not None
                    word = owner.word(w.blob, w.at)
                    if word.value != memory[w.port].data_ptr() + w.offset:
                        raise GraphError("a library launches differently from time to time")
                    places.setdefault(w.port, []).append((owner, word, w.offset))
            # Of what is staged only the copies move.
            places = {n: p for n, p in places.items() if n not in staging.memory}
            places |= staging.places(self.graphs, taken)
            addresses = {n: m.data_ptr() for n, m in memory.items()}
            made = CapturedGraph(self.graphs, taken, places, addresses)
        except BaseException:
            taken.graph.close()
            raise
        for port in self.foreign_ports:
            low = addresses[port] & -addresses[port] or ALIGNED
            made.aligned[port] = max(VECTOR, min(ALIGNED, low))
        made.aligned |= dict.fromkeys(staging.memory, 1)  # a copy takes any
        made.copied = staging.told
        made.kept += [recorder.pool, *staging.memory.values()]
        return made

    def _words(
        self, recorder: Recorder, first: Recording, memory: Memory, moving: Sequence[str]
    ) -> tuple[dict[int, list[Word]], dict[str, str]]:
        """The words of libraries' launches that hold ports, and why some ports are in doubt."""
        sizes = {n: memory[n].numel() for n in moving}
        starts = [{n: memory[n].data_ptr() for n in moving}]
        others: list[Recording] = []
        kept: list[torch.Tensor] = []
        try:
            for _ in range(2):
                where, block = self._elsewhere(sizes, starts, memory)
                kept.append(block)
                starts.append({n: t.data_ptr() for n, t in where.items()})
                others.append(recorder.record({**memory, **where}))
            return self._compared(first, others, sizes, starts)
        except BaseException:
            first.graph.close()
            raise
        finally:
            for other in others:
                other.graph.close()

    def _read(self, taken: Recording, number: int) -> list[Params | None]:
        """The parameters of the nodes of a launch."""
        record = self.executable.records[number]
        words = record.arguments if isinstance(record, Launched) else 0
        return [self.graphs.read(node, words) for node in taken.nodes[number]]

    def _elsewhere(
        self, sizes: Mapping[str, int], starts: Sequence[Mapping[str, int]], like: Memory
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The ports at other addresses, each moved by a distance of its own."""
        room = sum(n + ALIGNED * (len(sizes) * len(starts) + 3) for n in sizes.values())
        place = next(iter(like.values())).device
        block = torch.empty(room, dtype=torch.uint8, device=place)
        base = block.data_ptr()
        found = distinct_addresses(sizes, starts, base)
        return {n: block[a - base : a - base + sizes[n]] for n, a in found.items()}, block

    def _compared(
        self,
        first: Recording,
        others: Sequence[Recording],
        sizes: Mapping[str, int],
        starts: Sequence[Mapping[str, int]],
    ) -> tuple[dict[int, list[Word]], dict[str, str]]:
        second, third = others
        moved = {n: Moved(starts[0][n], starts[1][n], size) for n, size in sizes.items()}
        words: dict[int, list[Word]] = {}
        doubtful: dict[str, str] = {}
        ports = own_ports(self.executable)
        for number in self.foreign:
            a, b, c = (self._read(t, number) for t in (first, second, third))
            found = compare(a, b, moved)
            if not isinstance(found, str):
                known = [p for p in a if p is not None]
                if predict_params(known, found, starts[2]) != [
                    p.bytes() for p in c if p is not None
                ]:
                    found = "its parameters depend on addresses in ways that do not repeat"
            if not isinstance(found, str):
                used = {p for p, _, _ in ports[number]} & set(sizes)
                if used - {w.port for w in found}:
                    found = "its address is not among the parameters"
            if isinstance(found, str):
                reason = f"a library's launch uses it: {found}"
                doubtful |= {p: reason for p, _, _ in ports[number] if p in sizes}
            else:
                words[number] = found
        return words, doubtful
