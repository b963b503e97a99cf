"""Graphs on the fake driver: recorded, built, changed and launched in Python."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from monograph.errors import ExecutionError
from monograph.ir import DType
from monograph.runtime.gpu.driver.graphs import (
    CONDITIONAL,
    IF,
    KERNEL,
    MEMCPY,
    OTHER,
    TO_DEVICE,
    CopyNode,
    Fill,
    GraphError,
    Handle,
    Params,
    Start,
)
from monograph.runtime.gpu.host_io import overlapped_upload
from monograph.runtime.gpu.host_io.overlapped_upload import LINE, blocks_of
from monograph.runtime.gpu.host_io.upload_kernel import upload_kernel_name
from tests.gpu.fake_driver import FakeDriver, FakeExecutable, FakeGraph, Node, run_node
from tests.gpu.fake_launches import FakeRecord, numbers


def _widen(narrowed: DType, to: int, source: int, nbytes: int) -> None:
    """Makes so many bytes of f32 of numbers of 16 bits."""
    halves = numbers(source, nbytes // 4, narrowed.numpy)
    with np.errstate(invalid="ignore"):  # a NaN that signals
        numbers(to, nbytes // 4)[:] = halves.astype(np.float32)


class FakeGraphs:
    """`runtime.gpu.graphs.Graphs` on a fake driver."""

    name = "fake"

    def __init__(self, driver: FakeDriver, conditionals: bool = True, builds: bool = False) -> None:
        self.driver = driver
        self.builds = builds
        self.waits_for_inputs = True
        self.conditionals = conditionals
        self.lock = threading.RLock()
        self.elsewhere = False
        """True if another device is the caller's current one."""
        self.guarded = self._guards = 0
        self.marked: list[int] = []
        """Streams that memory was said to be used on."""
        self.held: dict[int, int] = {}
        """... and the addresses of that memory, as long as the stream has not come so far."""

    def streams(self, count: int) -> list[int]:
        return list(range(1000, 1000 + count))

    def using(self, stream: int, pool: Any = None) -> AbstractContextManager[Any]:
        return self.driver.using(stream)

    def pool(self) -> Handle:
        return self.driver.made("pool", None)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def lock_pages(self, address: int, nbytes: int) -> Handle:
        self.driver.called("lock pages")
        number = next(self.driver._numbers)
        self.driver.locked[number] = range(address, address + nbytes)
        self.driver.live["pages"] += 1

        def let_go(_: Any) -> None:
            self.driver.live.subtract(["pages"])
            del self.driver.locked[number]

        return Handle(address, let_go)

    def current(self) -> int:
        return self.driver.current

    def here(self) -> bool:
        return not self.elsewhere or self._guards > 0

    @contextmanager
    def guard(self) -> Iterator[None]:
        self.guarded += 1
        self._guards += 1
        try:
            yield
        finally:
            self._guards -= 1

    def used_on(self, memory: Sequence[torch.Tensor], stream: int) -> None:
        self.marked.append(stream)
        addresses = {t.data_ptr() for t in memory}
        self.held |= dict.fromkeys(addresses, stream)
        # An event of the allocator: once the stream has come so far, the memory is free again.
        self.driver.enqueue(lambda: [self.held.pop(a, None) for a in addresses] and None)

    def free(self, tensor: torch.Tensor) -> int | None:
        """Hand freed memory to others at once, as a caching allocator does.

        Memory that was said to be used on a stream waits for that: the stream is returned.
        """
        stream = self.held.get(tensor.data_ptr())
        if stream is None:
            tensor.fill_(torch.nan)
        return stream

    def create(self) -> Handle:
        self.driver.called("create")
        return self.driver.made("graph", FakeGraph())

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        self._before(graph, before, beside)
        with self.driver.filling(graph.value) as stream:
            record.launch(stream)
        return graph.value.nodes[-1]

    def add_copy(self, graph: Handle, copy: CopyNode, before: Sequence[Any]) -> Any:
        self._before(graph, before, None)
        with self.driver.filling(graph.value) as stream:
            self.copy(stream, copy)
        return graph.value.nodes[-1]

    def _take(self, words: Sequence[int], narrowed: DType | None = None) -> None:
        """As the kernel does it: block by block, each by what was said in its line."""
        to, source, control, nbytes, narrow_to = (*words, 0)[:5]
        halves = blocks_of(narrow_to)
        for block in range(blocks_of(nbytes, narrow_to)):
            said = ctypes.c_uint32.from_address(control + (block + 1) * LINE)
            end = time.monotonic() + overlapped_upload.SECONDS
            while not said.value and time.monotonic() < end:
                time.sleep(0)  # another thread may have come to wait before all has arrived
            if not said.value or self.driver.late:
                ctypes.c_uint32.from_address(control).value = 1
            said.value = 0
            at = block * overlapped_upload.GRAIN
            if narrowed is not None and block < halves:
                count = min(overlapped_upload.GRAIN, narrow_to - at)
                _widen(narrowed, to + at, source + at // 2, count)
                continue
            at = narrow_to + (block - halves) * overlapped_upload.GRAIN
            ctypes.memmove(to + at, source + at, min(overlapped_upload.GRAIN, nbytes - at))

    def _before(self, graph: Handle, before: Sequence[Any], beside: Any) -> None:
        assert all(node in graph.value.nodes for node in before)
        assert len(set(map(int, before))) == len(before)
        assert beside is None or beside in before

    def prepare(self, record: Any) -> None:
        self.driver.called("prepare")

    def begin(self, stream: int) -> None:
        self.driver.called("begin")
        assert self.here()
        assert not self.capturing(stream)
        self.driver._recording[stream] = FakeGraph(), []

    def end(self, stream: int) -> Handle:
        graph, _ = self.driver._recording[stream]
        self._stop(graph)
        self.driver.called("end")
        if graph.spoilt:
            raise GraphError("the recording was spoilt")
        return self.driver.made("graph", graph)

    def abort(self, stream: int) -> None:
        if stream in self.driver._recording:
            self._stop(self.driver._recording[stream][0])

    def _stop(self, graph: FakeGraph) -> None:
        graph.done = True
        recording = self.driver._recording
        for stream in [s for s, (g, _) in recording.items() if g is graph]:
            del recording[stream]

    def capturing(self, stream: int) -> bool:
        return stream in self.driver._recording

    def capturing_now(self) -> bool:
        return self.capturing(self.driver.current)

    def tails(self, stream: int) -> list[Any]:
        return list(self.driver._recording[stream][1])

    def recorded(self, stream: int) -> list[Any]:
        return list(self.driver._recording[stream][0].nodes)

    def nodes(self, graph: Handle) -> list[Any]:
        return list(graph.value.nodes)

    def kind(self, node: Node) -> str:
        return node.kind

    def function(self, record: Any) -> int | None:
        return id(record.run) if isinstance(record, FakeRecord) else None

    def read(self, node: Node, words: int = 0) -> Params | None:
        if node.kind in (CONDITIONAL, OTHER):
            return None
        blobs = [ctypes.create_string_buffer(b, len(b)) for b in node.blobs]
        if node.kind == MEMCPY:
            return Params(node, MEMCPY, 0, tuple(node.blobs[1]), blobs[:1])
        return Params(node, KERNEL, node.code, (), blobs)

    resizes = True

    def resize(self, params: Params, record: Any) -> None:
        for blob, word in zip(params.blobs, record.words, strict=True):
            blob.raw = word.to_bytes(8, "little")

    def enable(self, executable: Handle, node: Node, enabled: bool) -> None:
        self.driver.called("enable")
        (executable.value.disabled.discard if enabled else executable.value.disabled.add)(int(node))

    def instantiate(self, graph: Handle) -> Handle:
        self.driver.called("instantiate")
        nodes = graph.value.nodes
        values = {int(n): list(n.blobs) for n in nodes}
        pages = {int(n): self.driver.pages_of(n, n.blobs) for n in nodes}
        return self.driver.made("executable", FakeExecutable(nodes, values, pages))

    def write(self, executable: Handle, params: Params) -> None:
        self.driver.called("write")
        assert not executable.closed
        kept = executable.value.values[int(params.node)]
        kept[: len(params.blobs)] = params.bytes()
        executable.value.pages[int(params.node)] = self.driver.pages_of(params.node, kept)

    def launch(self, executable: Handle, stream: int) -> None:
        self.driver.called("graph launch")
        assert not executable.closed
        assert self.here()
        assert not self.capturing(stream)
        value: FakeExecutable = executable.value
        enabled = [n for n in value.nodes if int(n) not in value.disabled]
        queued = [(n, list(value.values[int(n)])) for n in enabled]
        if any(self.driver.pages_of(n, blobs) != value.pages[int(n)] for n, blobs in queued):
            raise ExecutionError("a copy begins in pages that were let go")

        def run() -> None:
            for node, blobs in queued:
                run_node(node, blobs)

        self.driver.enqueue(run)

    def start(self, executable: Handle, stream: int, start: Start) -> None:
        """The launch comes first, as by a driver, and the work after what follows it."""
        errors: list[BaseException] = []

        @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        def launched(_: int, __: int) -> int:
            lazy, self.driver.lazy = self.driver.lazy, True
            try:
                self.launch(executable, stream)
            except BaseException as error:
                errors.append(error)
                return 1
            finally:
                self.driver.lazy = lazy
            return 0

        address = ctypes.cast(launched, ctypes.c_void_p).value
        assert address is not None
        failed = start(address, 1, stream)
        assert bool(failed) == bool(errors)
        if errors:
            raise errors[0]
        if not self.driver.lazy:
            self.driver.drain()

    def add_foreign(self, graph: Handle, record: Any, before: Sequence[Any]) -> Any:
        """Record launches as a node with a body that always runs."""
        self._before(graph, before, None)
        stream = 7000
        try:
            self.begin(stream)
            with self.driver.using(stream):
                record.launch(stream)
            made = self.end(stream)
        except BaseException:
            self.abort(stream)
            raise
        node = Node(next(self.driver._numbers), OTHER, None, [], bodies=[made.value])
        made.close()
        graph.value.nodes.append(node)
        return node

    def add_conditional(
        self, graph: Handle, kind: str, flag: int, before: Sequence[Any], bodies: Sequence[Fill]
    ) -> list[Any]:
        self._before(graph, before, None)
        node = self._conditional(kind, flag, bodies)
        graph.value.nodes.append(node)
        return [node]

    def conditional(self, stream: int, kind: str, flag: int, bodies: Sequence[Fill]) -> None:
        self.driver.add(stream, self._conditional(kind, flag, bodies))

    def _conditional(self, kind: str, flag: int, bodies: Sequence[Fill]) -> Node:
        made = []
        for fill in bodies:
            made.append(FakeGraph())
            ends = fill(Handle(made[-1], lambda _: None))
            assert all(node in made[-1].nodes for node in ends)
        words = [flag.to_bytes(8, "little")]
        number = next(self.driver._numbers)
        return Node(number, CONDITIONAL, None, words, bodies=made, loop=kind != IF)

    def copy(self, stream: int, copy: CopyNode) -> None:
        if copy.control:
            words = (copy.to, copy.source, copy.control, copy.nbytes)
            words = words if copy.narrowed is None else (*words, copy.narrow_to)
            blobs = [word.to_bytes(8, "little") for word in words]
            take = partial(self._take, narrowed=copy.narrowed)
            self.driver.launch(stream, upload_kernel_name(copy.narrowed), take, blobs)
            return
        self.driver.called("copy")
        both = copy.to.to_bytes(8, "little") + copy.source.to_bytes(8, "little")
        number = next(self.driver._numbers)
        blobs = [both, copy.nbytes.to_bytes(8, "little")]
        self.driver.add(stream, Node(number, MEMCPY, None, blobs))

    def send(self, stream: int, to: int, source: int, nbytes: int) -> None:
        assert not self.capturing(stream)
        self.copy(stream, CopyNode(to, source, nbytes, TO_DEVICE))

    def event(self) -> Handle:
        return self.driver.made("event", {"done": True, "graph": None})

    def record(self, event: Handle, stream: int) -> None:
        if stream in self.driver._recording:
            event.value["graph"] = self.driver._recording[stream]
            return
        event.value["done"] = False
        self.driver.enqueue(lambda: event.value.update(done=True))

    def wait(self, stream: int, event: Handle) -> None:
        found = event.value["graph"]
        if found is not None and stream not in self.driver._recording:
            self.driver._recording[stream] = found[0], list(found[1])

    def finish(self, event: Handle) -> None:
        self.driver.called("finish")
        self.driver.drain()

    def done(self, event: Handle) -> bool:
        return bool(event.value["done"])
