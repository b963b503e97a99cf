"""Replay: an executable's run as one launch of a graph that was recorded once.

The first run records and launches once. Later runs launch; ports that have moved are written into
the graph before. A run that cannot be recorded is launched kernel by kernel, counted and logged.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch

from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.runtime.gpu.capture import UncapturableError
from monograph.runtime.gpu.graphs import TO_DEVICE, TO_HOST, GraphError, Graphs
from monograph.runtime.gpu.recorded import Maker, Recorded
from monograph.runtime.gpu.running import VECTOR, Running, Slot
from monograph.runtime.gpu.slabs import Pending, Ring, Slab
from monograph.runtime.gpu.tensors import raw, torch_type
from monograph.runtime.outputs import NOTHING, refuse_unlike

MODES = ("auto", "off", "require")
HOST = ("auto", "direct", "copy")
DIRECT = 64 << 10
"""Bytes up to which kernels read and write the host's memory themselves."""
_LONGEST = 1024
"""Runs after which a recording that failed is tried again, at most."""
_log = logging.getLogger("monograph")


@dataclass
class Stats:
    """What runs have been."""

    captures: int = 0
    replays: int = 0
    rebinds: int = 0
    """Ports that had moved."""
    for_callers: int = 0
    """Runs that were recorded into a graph of the caller's."""
    staged: Counter[str] = field(default_factory=Counter)
    """Copies of inputs and outputs on the device, by port and reason."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Runs launched kernel by kernel, by reason."""


class Replay:
    """An executable that is recorded and replayed. May be used from several threads."""

    def __init__(
        self, executable: Running, graphs: Graphs, mode: str = "auto", *, host: str = "auto"
    ) -> None:
        for given, known, name in ((mode, MODES, "capture"), (host, HOST, "host")):
            if given not in known:
                raise ConfigError(f"unknown way for {name}", expected=known, given=given)
        self.executable = executable
        self.graphs = graphs
        self.mode = mode
        self.counts = Stats()
        self._host_way = host
        self._lock = executable._lock
        self._process = os.getpid()
        self._maker = Maker(executable, graphs)
        self._recorded: Recorded | None = None
        self._on_host: Recorded | None = None
        self._ring = Ring(executable.layout, graphs)
        self._failures = 0
        self._pause = 0
        self._reason = "" if getattr(executable, "whole", True) else _host_steps(executable)
        self._never = bool(self._reason)
        layout, place = executable.layout, executable.device.place
        self._in = [(s.name, torch.Size(s.shape), torch_type(s.dtype)) for s in layout.inputs]
        self._out = [(s.shape, torch_type(s.dtype)) for s in layout.outputs]
        self._place = place
        self._names = [f"input:{s.name}" for s in layout.inputs]
        self._names += [f"output:{s.name}" for s in layout.outputs]
        self._plain = not layout.faults and not any(s.over for s in layout.outputs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "a model on a GPU is neither copied nor pickled",
            hint="load it again where another is needed",
        )

    @property
    def stats(self) -> dict[str, Any]:
        """What runs have been, as plain data."""
        counts = self.counts
        return {
            "captures": counts.captures,
            "replays": counts.replays,
            "rebinds": counts.rebinds,
            "recorded_for_callers": counts.for_callers,
            "staged": dict(counts.staged),
            "fallbacks": dict(counts.fallbacks),
            "launches_per_run": self.launches,
        }

    @property
    def launches(self) -> int:
        """Launches of a run by the host."""
        captured = self._recorded is not None or self._on_host is not None
        return 1 if captured else self.executable.launches

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, Any] = NOTHING) -> list[Any]:
        """The outputs, as `Running.run` gives them."""
        if self._plain and not out and self._recorded is not None:
            found = self._quick(feeds, self._recorded)
            if found is not None:
                return found
        return self._start(feeds, out).result()

    def run_async(
        self,
        feeds: Mapping[str, Any],
        stream: Any = None,
        out: Mapping[str, Any] = NOTHING,
    ) -> Pending:
        """Enqueues a run on the current stream, or the one given, and returns at once.

        Arrays on the host may be changed as soon as this returns; tensors as by any other work on
        the stream.
        """
        if stream is None:
            return self._start(feeds, out)
        number = int(getattr(stream, "cuda_stream", stream))
        tensors = [x for x in feeds.values() if isinstance(x, torch.Tensor)]
        elsewhere = number != self.graphs.current()
        with self.graphs.using(number):
            pending = self._start(feeds, out)
            if elsewhere:  # freed by the caller, they are still read here
                mine = [t for t in tensors if t.device == self._place]
                self.graphs.used_on(mine, number)
            return pending

    def close(self) -> None:
        """Frees the graphs now."""
        with self._lock:
            for recorded in (self._recorded, self._on_host):
                if recorded is not None:
                    recorded.close()
            self._recorded = self._on_host = None

    def _quick(self, feeds: Mapping[str, Any], recorded: Recorded) -> list[Any] | None:
        """A run on tensors that need nothing done to them: the usual case. None for others."""
        if recorded.staging:
            return None
        addresses: list[int] = []
        for name, shape, kind in self._in:
            tensor = feeds.get(name)
            if (
                not isinstance(tensor, torch.Tensor)
                or tensor.dtype is not kind
                or tensor.shape != shape
                or tensor.device != self._place
                or not tensor.is_contiguous()
            ):
                return None
            address = tensor.data_ptr()
            if address % recorded.aligned["input:" + name]:
                return None
            addresses.append(address)
        graphs, place = self.graphs, self._place
        with self._lock:
            stream = graphs.current()
            if (
                recorded is not self._recorded
                or os.getpid() != self._process
                or not graphs.here()
                or graphs.capturing(stream)
            ):
                return None
            outputs = [torch.empty(shape, dtype=kind, device=place) for shape, kind in self._out]
            for tensor in outputs:
                addresses.append(tensor.data_ptr())
            self._launch(recorded, addresses, stream)
        return outputs

    def _start(self, feeds: Mapping[str, Any], out: Mapping[str, Any]) -> Pending:
        """Enqueues a run, whatever it needs."""
        if os.getpid() != self._process:
            raise ExecutionError(
                "a GPU cannot be used in a process that was forked after its first use",
                hint='start processes by "spawn", or load the model in the child',
            )
        if not getattr(self.executable, "whole", True):
            self._may_record()
            return _ready(self.executable.run(feeds, out))
        given = {name: _imported(x) for name, x in feeds.items()}
        with ExitStack() as stack:
            if not self.graphs.here():
                stack.enter_context(self.graphs.guard())
            stack.enter_context(self._lock)
            tensors = any(isinstance(x, torch.Tensor) for x in (*given.values(), *out.values()))
            stream = self.graphs.current()
            if tensors or (not given and self.graphs.capturing(stream)):
                return self._on_device(given, out, stream)
            return self._from_host(given, out, stream)

    def _on_device(self, feeds: Mapping[str, Any], out: Mapping[str, Any], stream: int) -> Pending:
        """A run with tensors among its inputs or outputs."""
        executable, layout = self.executable, self.executable.layout
        inputs = {}
        for slot in layout.inputs:
            data = feeds[slot.name]
            self._count_copy(slot, data)
            inputs[slot.name] = executable._given(data, slot)
        usable = {n: t for n, t in out.items() if not self._overlaps(n, t, inputs, out)}
        outputs = executable._outputs(feeds, inputs, usable)
        memory = {f"input:{n}": raw(t) for n, t in inputs.items()}
        memory |= {f"output:{n}": raw(t) for n, t in outputs.items()}
        recording = self.graphs.capturing(stream)
        self._enqueue(memory, stream, recording)
        as_tensors = any(isinstance(x, torch.Tensor) for x in feeds.values())
        found = [
            None
            if _is_array(out.get(s.name), as_tensors)
            else executable._result(s, outputs[s.name], out, as_tensors)
            for s in layout.outputs
        ]
        event = None if recording else self._marked(stream)

        def finish() -> list[Any]:
            if event is not None and (layout.faults or None in found):
                self.graphs.finish(event)
                executable.check()
            pairs = zip(layout.outputs, found, strict=True)
            return [
                executable._result(s, outputs[s.name], out, as_tensors) if x is None else x
                for s, x in pairs
            ]

        return Pending(finish, lambda: event is None or self.graphs.done(event))

    def _marked(self, stream: int) -> Any:
        event = self.graphs.event()
        self.graphs.record(event, stream)
        return event

    def _count_copy(self, slot: Slot, data: Any) -> None:
        """Counts an input that has to be copied, and refuses one that does not fit."""
        if not isinstance(data, torch.Tensor):
            reason = "it is on the host"
        elif tuple(data.shape) != slot.shape or data.dtype != torch_type(slot.dtype):
            raise FeedError(
                f"the input {slot.name} has another type",
                expected=f"{torch_type(slot.dtype)} {list(slot.shape)}",
                given=f"{data.dtype} {list(data.shape)}",
            )
        elif data.device != self._place:
            reason = f"it is on {data.device}"
        elif not data.is_contiguous():
            reason = "it is strided"
        elif data.data_ptr() % VECTOR:
            reason = "it is misaligned"
        else:
            return
        self.counts.staged[f"{slot.name}: {reason}"] += 1

    def _overlaps(
        self, name: str, given: Any, inputs: Mapping[str, torch.Tensor], out: Mapping[str, Any]
    ) -> bool:
        """Whether an output's memory is also that of something else that the run uses."""
        if not isinstance(given, torch.Tensor) or given.device != self._place:
            return False
        over = next((s.over for s in self.executable.layout.outputs if s.name == name), "")
        if not given.is_contiguous():
            self.counts.staged[f"{name}: it is strided"] += 1
            return True
        others = [t for n, t in inputs.items() if n != over]
        others += [t for n, t in out.items() if n != name and isinstance(t, torch.Tensor)]
        whole = _range(given)
        for other in others:
            start, end = _range(other)
            if other.device == given.device and start < whole[1] and whole[0] < end:
                self.counts.staged[f"{name}: it overlaps another"] += 1
                return True
        return False

    def _enqueue(self, memory: dict[str, torch.Tensor], stream: int, recording: bool) -> None:
        """One run on some memory: a launch of the graph, or of every kernel."""
        if recording:
            for port, record, position, offset in self.executable._ports:
                record.point(position, memory[port], offset)
            for record in self.executable._records:
                record.launch(stream)
            self.counts.for_callers += 1
            return
        recorded = self._recorded
        if recorded is None and self._may_record():
            self._order(stream)
            recorded = self._recorded = self._attempt(lambda: self._maker.make(memory))
        if recorded is None:
            self.executable.launch(memory)
            return
        placed, back = self._placed(recorded, memory)
        self._launch(recorded, [placed[n].data_ptr() for n in recorded.names], stream)
        for to, source in back:
            to.copy_(source)

    def _placed(
        self, recorded: Recorded, memory: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
        """The memory that the graph uses, inputs copied there; and what to copy back after."""
        placed = dict(memory)
        back = []
        for name, tensor in memory.items():
            own = recorded.staging.get(name)
            reason = recorded.reasons.get(name, "with another")
            if own is None and tensor.data_ptr() % recorded.aligned[name]:
                own, reason = torch.empty_like(tensor), "it is misaligned for a library"
            if own is None:
                continue
            placed[name] = own
            self.counts.staged[f"{name.partition(':')[2]}: {reason}"] += 1
            if name.startswith("input:"):
                own.copy_(tensor)
            else:
                back.append((tensor, own))
        return placed, back

    def _order(self, stream: int) -> None:
        """Has a stream wait for runs on others: they use the same memory."""
        executable = self.executable
        if executable._stream == stream:
            return
        if executable._stream is not None:
            executable.device.join(executable._stream)
            owned = [*executable._memory.values(), *executable._constants._tensors]
            for recorded in (self._recorded, self._on_host):
                owned += [] if recorded is None else recorded.staging.values()
            self.graphs.used_on(owned, stream)
        executable._stream = stream

    def _launch(self, recorded: Recorded, addresses: list[int], stream: int) -> None:
        """Moves the ports that have moved, and launches."""
        self._order(stream)
        if addresses != recorded.addresses:
            try:
                self.counts.rebinds += recorded.rebind(addresses)
            except BaseException:
                self._forget(recorded)  # nobody knows which addresses it has
                raise
        recorded.launch(stream)
        self.executable.runs += 1
        self.counts.replays += 1

    def _forget(self, recorded: Recorded) -> None:
        if recorded is self._recorded:
            self._recorded = None
        if recorded is self._on_host:
            self._on_host = None

    def _may_record(self) -> bool:
        """Whether a recording is to be tried now; a run without one is counted."""
        if self.mode == "off":
            return False
        if self._never and self.mode == "require":
            raise GraphError("the run cannot be captured", given=self._reason)
        if self._never or self._pause > 0:
            self._pause = max(self._pause - 1, 0)
            if self._never and not self.counts.fallbacks[self._reason]:
                _log.warning("runs are not captured: %s", self._reason)
            self.counts.fallbacks[self._reason] += 1
            return False
        return True

    def _attempt(self, make: Any) -> Recorded | None:
        """A recording; None if it failed, which has launched nothing."""
        try:
            recorded: Recorded = make()
        except Exception as error:
            self._failures += 1
            self._pause = min(2 ** (self._failures - 1), _LONGEST) - 1
            self._never = isinstance(error, UncapturableError)
            self._reason = _first_line(error)
            if self.mode == "require":
                raise GraphError("the run cannot be captured", given=self._reason) from error
            _log.warning("a run was not captured, and launched step by step: %s", self._reason)
            self.counts.fallbacks[self._reason] += 1
            return None
        self._failures = 0
        self.counts.captures += 1
        return recorded

    def _from_host(self, feeds: Mapping[str, Any], out: Mapping[str, Any], stream: int) -> Pending:
        """A run on arrays of the host: through a slab, in one launch."""
        if self.graphs.capturing(stream):
            raise ExecutionError(
                "a run on arrays of the host cannot be recorded into a caller's graph",
                hint="feed tensors that are on the device",
            )
        for slot in self.executable.layout.outputs:
            if slot.name in out:
                refuse_unlike(slot.name, out[slot.name], slot.shape, slot.dtype.numpy)
        if not self._host_graph():
            return _ready(self.executable.run(feeds, out))
        slab = self._ring.take()
        slab.fill(feeds)
        recorded = self._on_host or self._recorded
        assert recorded is not None
        if recorded is self._on_host:
            self._launch(recorded, [slab.address], stream)
        else:
            ports = self._ring.layout.ports()
            self._launch(recorded, [slab.address + ports[n][0] for n in recorded.names], stream)
        self.graphs.record(slab.event, stream)
        return self._pending(slab, out)

    def _pending(self, slab: Slab, out: Mapping[str, Any]) -> Pending:
        def finish() -> list[Any]:
            try:
                self.graphs.finish(slab.event)
                self.executable.check()
                return slab.results(out)
            finally:
                slab.user = None

        slab.user = Pending(finish, lambda: self.graphs.done(slab.event))
        return slab.user

    def _host_graph(self) -> bool:
        """Whether there is a graph for runs on host data; it is recorded now, if not before."""
        if self._on_host is not None or (self._direct and self._recorded is not None):
            return True
        if not self._may_record():
            return False
        slab = self._ring.take()
        self._order(self.graphs.current())
        if self._direct:
            memory = self._ring.layout.memory(slab.block)
            self._recorded = self._attempt(lambda: self._maker.make(memory))
            return self._recorded is not None
        self._on_host = self._attempt(lambda: self._copied(slab))
        return self._on_host is not None

    @property
    def _direct(self) -> bool:
        """Whether kernels read and write the host's memory themselves."""
        if not self._maker.all_exact or any(s.over for s in self.executable.layout.outputs):
            return False
        small = self._ring.layout.nbytes <= DIRECT
        return self._host_way == "direct" or (self._host_way == "auto" and small)

    def _copied(self, slab: Slab) -> Recorded:
        """A graph that begins and ends with a copy between a slab and a block like it."""
        layout, graphs = self._ring.layout, self.graphs
        block = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._place)
        start, first, last = block.data_ptr(), layout.in_to, layout.nbytes - layout.out_from

        def bring(stream: int) -> None:
            graphs.copy(stream, start, slab.address, first, TO_DEVICE)

        def fetch(stream: int) -> None:
            at = layout.out_from
            graphs.copy(stream, slab.address + at, start + at, last, TO_HOST)

        recorder, taken = self._maker.fixed(
            layout.memory(block), bring if first else None, fetch if last else None
        )
        places = []
        for name, word, offset in (("before", 8, 0), ("after", 0, layout.out_from)):
            if name in taken.edges:
                params = graphs.read(taken.edges[name])
                if params is None:
                    raise GraphError("a recorded copy cannot be read")
                places.append((params, params.word(0, word), offset))
        made = Recorded(graphs, taken, {"slab": places}, {"slab": slab.address})
        made.kept += [recorder.pool, block]
        return made


def _ready(found: list[Any]) -> Pending:
    return Pending(lambda: found, lambda: True)


def _imported(data: Any) -> Any:
    """What is fed, with tensors of other libraries as tensors of torch."""
    if isinstance(data, (torch.Tensor, np.ndarray, np.generic)):
        return data
    if hasattr(data, "__dlpack__") or type(data).__name__ == "PyCapsule":
        return torch.from_dlpack(data)
    return data


def _is_array(given: Any, as_tensors: bool) -> bool:
    """Whether an output goes to the host."""
    return isinstance(given, np.ndarray) or (given is None and not as_tensors)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor's elements lie in."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _host_steps(executable: Any) -> str:
    kinds = ", ".join(dict.fromkeys(executable.host_kinds)) or "an output without memory"
    return f"the host takes part in a run: {kinds}"


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return text or type(error).__name__
