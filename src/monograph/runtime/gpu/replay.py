"""Replay: an executable's run as one launch of a graph that was recorded once.

The first run records and launches once. Later runs launch; ports that have moved are written into
the graph before. A run that cannot be recorded is launched kernel by kernel, counted and logged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NoReturn

import torch

from monograph.errors import ConfigError, ExecutionError
from monograph.runtime.gpu.attempts import AUTO, Attempts, Counts
from monograph.runtime.gpu.fitting import (
    goes_to_host,
    imported,
    refuse_misfit,
    why_copied,
    why_not_written,
)
from monograph.runtime.gpu.graphs import Graphs, Handle
from monograph.runtime.gpu.hosted import WAYS, is_direct, with_copies
from monograph.runtime.gpu.recorded import Maker, Recorded
from monograph.runtime.gpu.running import Running
from monograph.runtime.gpu.slabs import Pending, Ring, Slab, nbytes
from monograph.runtime.gpu.tensors import raw, torch_type
from monograph.runtime.outputs import NOTHING, refuse_unlike


class Replay:
    """An executable that is recorded and replayed. May be used from several threads."""

    def __init__(
        self, executable: Running, graphs: Graphs, mode: str = AUTO, *, host: str = AUTO
    ) -> None:
        if host not in WAYS:
            raise ConfigError("unknown way for host data", expected=" | ".join(WAYS), given=host)
        layout = executable.layout
        self.executable = executable
        self.graphs = graphs
        self._whole = bool(getattr(executable, "whole", True))
        self._attempts = Attempts(mode, "" if self._whole else _host_steps(executable))
        self._lock = executable._lock
        self._process = os.getpid()
        self._maker = Maker(executable, graphs)
        self._recorded: Recorded | None = None
        self._on_host: Recorded | None = None
        self._ring = Ring(layout, graphs)
        self._direct = is_direct(host, self._maker)
        self._place = executable.device.place
        self._index = self._place.index if self._place.type == "cuda" else -1
        self._in = [
            (s.name, f"input:{s.name}", torch.Size(s.shape), torch_type(s.dtype), nbytes(s))
            for s in layout.inputs
        ]
        at = {s.name: i for i, s in enumerate(layout.inputs)}
        self._out = [
            (s.name, s.shape, _strides(s.shape), torch_type(s.dtype), at[s.over] if s.over else -1)
            for s in layout.outputs
        ]
        self._donated = {s.name for s in layout.outputs if s.over}

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "a model on a GPU is neither copied nor pickled",
            hint="load it again where another is needed",
        )

    @property
    def counts(self) -> Counts:
        return self._attempts.counts

    @property
    def stats(self) -> dict[str, Any]:
        """What runs have been, as plain data."""
        return {
            "captures": self.counts.captures,
            "replays": self.counts.replays,
            "rebinds": self.counts.rebinds,
            "recorded_for_callers": self.counts.for_callers,
            "staged": dict(self.counts.staged),
            "fallbacks": dict(self.counts.fallbacks),
            "launches_per_run": self.launches,
        }

    @property
    def launches(self) -> int:
        """Launches of a run by the host."""
        captured = self._recorded is not None or self._on_host is not None
        return 1 if captured else self.executable.launches

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, Any] = NOTHING) -> list[Any]:
        """The outputs, as `Running.run` gives them."""
        if self._recorded is not None and out.keys() == self._donated:
            found = self._quick(feeds, out, self._recorded)
            if found is not None:
                self.executable.check()
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
            return self._started(feeds, out)
        number = int(getattr(stream, "cuda_stream", stream))
        elsewhere = number != self.graphs.current()
        with self.graphs.using(number):
            pending = self._started(feeds, out)
            if elsewhere:  # freed by the caller, they are still in use here
                given = [*feeds.values(), *out.values()]
                tensors = [x for x in given if isinstance(x, torch.Tensor)]
                self.graphs.used_on([t for t in tensors if t.device == self._place], number)
            return pending

    def _started(self, feeds: Mapping[str, Any], out: Mapping[str, Any]) -> Pending:
        """A run that was enqueued, if it can be the quick way."""
        stream = self.graphs.current()
        if self._recorded is None or out.keys() != self._donated:
            return self._start(feeds, out)
        found = self._quick(feeds, out, self._recorded)
        if found is None:
            return self._start(feeds, out)
        event = self._marked(stream)

        def finish() -> list[Any]:
            if self.executable.layout.faults:
                self.graphs.finish(event)
                self.executable.check()
            return found

        return Pending(finish, lambda: self.graphs.done(event))

    def close(self) -> None:
        """Frees the graphs now."""
        with self._lock:
            for recorded in (self._recorded, self._on_host):
                if recorded is not None:
                    recorded.close()
            self._recorded = self._on_host = None

    def _quick(
        self, feeds: Mapping[str, Any], out: Mapping[str, Any], recorded: Recorded
    ) -> list[Any] | None:
        """A run on tensors that need nothing done to them: the usual case. None for others."""
        if recorded.staging:
            return None
        addresses: list[int] = []
        aligned, place, index = recorded.aligned, self._place, self._index
        for name, port, shape, kind, _ in self._in:
            tensor = feeds.get(name)
            if (
                not isinstance(tensor, torch.Tensor)
                or tensor.dtype is not kind
                or tensor.shape != shape
                or tensor.get_device() != index
                or not tensor.is_contiguous()
            ):
                return None
            address = tensor.data_ptr()
            if address % aligned[port]:
                return None
            addresses.append(address)
        if out and not self._in_place(feeds, out, addresses):
            return None
        graphs = self.graphs
        with self._lock:
            stream = graphs.current()
            if (
                recorded is not self._recorded
                or os.getpid() != self._process
                or not graphs.here()
                or graphs.capturing_now()
            ):
                return None
            outputs = []
            for name, size, strides, kind, over in self._out:
                if over >= 0:
                    outputs.append(out[name])
                    addresses.append(addresses[over])
                else:
                    # With strides it is made in half the time.
                    outputs.append(torch.empty_strided(size, strides, dtype=kind, device=place))
                    addresses.append(outputs[-1].data_ptr())
            self._launch(recorded, addresses, stream)
        return outputs

    def _in_place(
        self, feeds: Mapping[str, Any], out: Mapping[str, Any], addresses: list[int]
    ) -> bool:
        """Whether all state is given back where it is, and nothing else is there."""
        for name, *_, over in self._out:
            if over < 0:
                continue
            if out[name] is not feeds[self._in[over][0]]:
                return False
            start, end = addresses[over], addresses[over] + self._in[over][4]
            for number, address in enumerate(addresses[: len(self._in)]):
                if number != over and address < end and start < address + self._in[number][4]:
                    return False
        return True

    def _start(self, feeds: Mapping[str, Any], out: Mapping[str, Any]) -> Pending:
        """Enqueues a run, whatever it needs."""
        if os.getpid() != self._process:
            raise ExecutionError(
                "a GPU cannot be used in a process that was forked after its first use",
                hint='start processes by "spawn", or load the model in the child',
            )
        if not self._whole:
            self._attempts.wanted()
            return _ready(self.executable.run(feeds, out))
        given = {name: imported(x) for name, x in feeds.items()}
        with ExitStack() as stack:
            if not self.graphs.here():
                stack.enter_context(self.graphs.guard())
            stack.enter_context(self._lock)
            stream = self.graphs.current()
            recording = self.graphs.capturing_now()
            tensors = any(isinstance(x, torch.Tensor) for x in (*given.values(), *out.values()))
            if tensors or (recording and not given):
                return self._from_device(given, out, stream, recording)
            if recording:
                raise ExecutionError(
                    "a run on arrays of the host cannot be recorded into a caller's graph",
                    hint="feed tensors that are on the device",
                )
            return self._from_host(given, out, stream)

    def _from_device(
        self, feeds: Mapping[str, Any], out: Mapping[str, Any], stream: int, recording: bool
    ) -> Pending:
        """A run with tensors among its inputs or outputs."""
        executable, layout = self.executable, self.executable.layout
        inputs = {}
        for slot in layout.inputs:
            data = feeds[slot.name]
            if isinstance(data, torch.Tensor):
                refuse_misfit(slot, data)
            self._count(slot.name, why_copied(data, self._place))
            inputs[slot.name] = executable._given(data, slot)
        usable = self._usable(inputs, out)
        outputs = executable._outputs(feeds, inputs, usable)
        memory = {f"input:{n}": raw(t) for n, t in inputs.items()}
        memory |= {f"output:{n}": raw(t) for n, t in outputs.items()}
        self._enqueue(memory, stream, recording)
        as_tensors = any(isinstance(x, torch.Tensor) for x in feeds.values())

        def result(number: int) -> Any:
            slot = layout.outputs[number]
            return executable._result(slot, outputs[slot.name], out, as_tensors)

        later = [goes_to_host(out.get(s.name), as_tensors) for s in layout.outputs]
        found = [None if later[i] else result(i) for i in range(len(later))]
        event = None if recording else self._marked(stream)

        def finish() -> list[Any]:
            if event is not None and (layout.faults or any(later)):
                self.graphs.finish(event)
                executable.check()
            return [result(i) if later[i] else x for i, x in enumerate(found)]

        return Pending(finish, lambda: event is None or self.graphs.done(event))

    def _usable(self, inputs: Mapping[str, torch.Tensor], out: Mapping[str, Any]) -> dict[str, Any]:
        """What of the caller's the kernels may write to."""
        over = {s.name: s.over for s in self.executable.layout.outputs}
        found = {}
        for name, given in out.items():
            others = [t for n, t in inputs.items() if n != over.get(name)]
            others += [t for n, t in out.items() if n != name]
            why = why_not_written(given, others, self._place)
            self._count(name, why)
            if not why:
                found[name] = given
        return found

    def _count(self, name: str, why_staged: str) -> None:
        if why_staged:
            self.counts.staged[f"{name}: {why_staged}"] += 1

    def _marked(self, stream: int) -> Handle:
        event = self.graphs.event()
        self.graphs.record(event, stream)
        return event

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
        if recorded is None and self._attempts.wanted():
            self._order(stream)
            recorded = self._attempts.attempt(lambda: self._maker.make(memory))
            self._recorded = recorded
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
            reason = recorded.reasons.get(name, "what it is written over is")
            if own is None and tensor.data_ptr() % recorded.aligned[name]:
                own, reason = torch.empty_like(tensor), "it is misaligned for a library"
            if own is None:
                continue
            placed[name] = own
            self._count(name.partition(":")[2], reason)
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
                owned += [] if recorded is None else recorded.memory
            self.graphs.used_on(owned, stream)
        executable._stream = stream

    def _launch(self, recorded: Recorded, addresses: list[int], stream: int) -> None:
        """Moves the ports that have moved, and launches."""
        if self.executable._stream != stream:
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

    def _from_host(self, feeds: Mapping[str, Any], out: Mapping[str, Any], stream: int) -> Pending:
        """A run on arrays of the host: through a slab, in one launch."""
        for slot in self.executable.layout.outputs:
            if slot.name in out:
                refuse_unlike(slot.name, out[slot.name], slot.shape, slot.dtype.numpy)
        recorded = self._host_graph(stream)
        if recorded is None:
            return _ready(self.executable.run(feeds, out))
        slab = self._ring.take()
        slab.fill(feeds)
        if self._direct:
            ports = self._ring.layout.ports()
            self._launch(recorded, [slab.address + ports[n][0] for n in recorded.names], stream)
        else:
            self._launch(recorded, [slab.address], stream)
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

    def _host_graph(self, stream: int) -> Recorded | None:
        """The graph for runs on host data, recorded now if not before; None if it cannot be."""
        found = self._recorded if self._direct else self._on_host
        if found is not None or not self._attempts.wanted():
            return found
        slab, layout = self._ring.take(), self._ring.layout
        self._order(stream)
        if self._direct:
            memory = layout.memory(slab.block)
            self._recorded = self._attempts.attempt(lambda: self._maker.make(memory))
            return self._recorded
        self._on_host = self._attempts.attempt(lambda: with_copies(self._maker, layout, slab))
        return self._on_host


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of elements one after the other."""
    return tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def _ready(found: list[Any]) -> Pending:
    return Pending(lambda: found, lambda: True)


def _host_steps(executable: Running) -> str:
    kinds = ", ".join(dict.fromkeys(executable.host_kinds)) or "an output without memory"
    return f"the host takes part in a run: {kinds}"
