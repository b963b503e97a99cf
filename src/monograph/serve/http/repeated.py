"""Requests that repeat the header of an earlier one on their connection.

A client asks the same model again and again over a kept connection: only the bytes of its tensors
change. Such a request is compared with the header that was read before, its JSON with the one that
was parsed before, and its tensors go to the queue of the model without anything in between. Any
other request, and each one for which something is not as before, takes the way of all requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Array
from monograph.ir.dtype import boolean, string
from monograph.serve.batches import Answer, Arrays, Group, Waiting, group_of
from monograph.serve.datatypes import to_bytes
from monograph.serve.failures import RequestError
from monograph.serve.http.bodies import CODINGS
from monograph.serve.http.infer import HEADER_LENGTH, CallPlan, read_plan, write_answer
from monograph.serve.http.routing import BINARY
from monograph.serve.keys import ApiKeys
from monograph.serve.protocol import InferAnswer, Protocol2
from monograph.serve.tensors import TensorModel

Headers = Sequence[tuple[bytes, bytes]]
MOST_HEADS = 64
"""The most heads of answers that are kept for one request."""
LONGEST_TEXT = 16 << 10
"""The longest JSON that is kept."""
_END = b"\r\n\r\n"


@dataclass(slots=True)
class KnownRequest:
    """The header of a request that may come again."""

    head: bytes
    size: int
    """The bytes of the whole request."""
    text_end: int
    """The place where its JSON ends."""
    name: str
    version: str
    prepared: PreparedCall | None = None
    plain: bool = True
    """False if it cannot take the short way."""


@dataclass(slots=True)
class PreparedCall:
    """A request as its JSON tells it, checked against one model."""

    text: bytes
    plan: CallPlan
    model: TensorModel
    inputs: tuple[tuple[str, Any, tuple[int, ...], int, int], ...]
    """Name, type, shape, place after the JSON, and count of elements, in the model's order."""
    group: Group | None
    """The group of its batches; None if it depends on the values of an input."""
    rows: int
    nbytes: int
    wanted: tuple[int, ...]
    """The places of the wanted outputs."""
    heads: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def feeds(self, data: bytes, at: int) -> Arrays:
        """Return the inputs over the bytes of a request; they may not be aligned."""
        return {
            name: np.frombuffer(data, dtype, count, at + place).reshape(shape)
            for name, dtype, shape, place, count in self.inputs
        }

    def answer(self, outputs: Sequence[Array]) -> list[bytes | memoryview]:
        """Return the parts of an answer after its first line and general headers."""
        found = [outputs[i] for i in self.wanted]
        key = tuple([x.shape for x in found])
        head = self.heads.get(key)
        if head is None:
            head = self._head(found)
            if len(self.heads) >= MOST_HEADS:
                self.heads.clear()
            self.heads[key] = head
        return [head, *[to_bytes(x) for x in found]]

    def _head(self, found: Sequence[Array]) -> bytes:
        names = [self.model.outputs[i].name for i in self.wanted]
        answer = InferAnswer(
            self.model.name, self.model.version, self.plan.id, list(zip(names, found, strict=True))
        )
        parts, length = write_answer(answer, self.plan.binary)
        size = sum(map(len, parts))
        text = (
            f"content-length: {size}\r\ncontent-type: {BINARY}\r\n{HEADER_LENGTH}: {length}\r\n\r\n"
        )
        return text.encode() + bytes(parts[0])


class RepeatedCalls:
    """Finds requests that may come again, and queues those that do."""

    def __init__(self, protocol: Protocol2, keys: ApiKeys) -> None:
        self._protocol = protocol
        self._keys = keys
        self.limits = protocol.repository.settings.limits

    def known(self, data: bytes, scope: Mapping[str, Any], headers: Headers) -> KnownRequest | None:
        """Return the header of a request as one that may come again; None for other requests.

        data: what the connection received, from the start of the request.
        """
        match scope["path"].split("/"):
            case ["", "v2", "models", name, "infer"]:
                version = ""
            case ["", "v2", "models", name, "versions", version, "infer"]:
                pass
            case _:
                return None
        end = data.find(_END) + len(_END)
        head, given = data[:end], {n.decode("latin-1"): v.decode("latin-1") for n, v in headers}
        length, json_length = given.get("content-length", ""), given.get(HEADER_LENGTH, "")
        plain = (
            scope["method"] == "POST"
            and head.startswith(b"POST ")
            and scope["http_version"] == "1.1"
            # One line for the request, one for each header, none folded, and an empty one.
            and head.count(b"\n") == head.count(b"\r\n") == len(given) + 2 == len(headers) + 2
            and not {"transfer-encoding", "content-encoding", "expect", "upgrade"} & set(given)
            and given.get("accept-encoding", "").strip().lower() not in CODINGS
            and length.isdecimal()
            and json_length.isdecimal()
            and int(json_length) <= min(int(length), LONGEST_TEXT)
            and int(length) <= self.limits.body_bytes
        )
        if not plain:
            return None
        try:
            self._keys.check(given)
        except RequestError:
            return None
        return KnownRequest(head, end + int(length), end + int(json_length), name, version)

    def queue(self, known: KnownRequest, data: bytes, answer: Answer) -> Any:
        """Queue a request; return the timer of its deadline if it has one.

        Any error means that the request must take the way of all requests.
        """
        model = self._protocol.repository.get(known.name, known.version)
        text = data[len(known.head) : known.text_end]
        prepared = known.prepared
        if prepared is None or prepared.model is not model or prepared.text != text:
            prepared = known.prepared = self._prepared(model, data, known, text)
        feeds = prepared.feeds(data, known.text_end)
        group, rows = prepared.group, prepared.rows
        if group is None:
            group, rows = group_of(feeds, prepared.model.axes)
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        deadline = now + self._protocol.seconds(prepared.plan.parameters)
        return prepared.model.runner.enqueue(
            Waiting(feeds, answer, loop, group, rows, prepared.nbytes, now, deadline)
        )

    def _prepared(
        self, model: object, data: bytes, known: KnownRequest, text: bytes
    ) -> PreparedCall:
        """Return a request, checked against its model; raise NotPlainError if it is not plain."""
        plan = read_plan(text)
        if not isinstance(model, TensorModel) or not plan.inputs:
            raise NotPlainError
        feeds = plan.feeds(memoryview(data), known.text_end)
        checked = model.checked(feeds)
        names = [p.name for p in model.outputs]
        wanted = plan.outputs or tuple(names)
        at = 0
        inputs = {}
        for given in plan.inputs:
            if given.size is None or not given.size or given.dtype in (string, boolean):
                raise NotPlainError
            inputs[given.name] = (given.name, given.dtype.numpy, given.shape, at,
                                  feeds[given.name].size)  # fmt: skip
            at += given.size
        same = len(checked) == len(feeds) and all(checked[n] is feeds.get(n) for n in checked)
        kinds = [p.dtype for p in model.outputs if p.name in wanted]
        if not same or string in kinds or not {*wanted} <= {*names}:
            raise NotPlainError
        if not all(plan.binary.get(n, plan.binary[""]) for n in wanted):
            raise NotPlainError
        self._protocol.seconds(plan.parameters)
        group, rows = group_of(checked, model.axes)
        valued = model.axes is not None and {*checked} != {*model.axes.inputs}
        return PreparedCall(
            text, plan, model, tuple(inputs[n] for n in checked), None if valued else group, rows,
            sum(x.nbytes for x in checked.values()), tuple(names.index(n) for n in wanted),
        )  # fmt: skip


class NotPlainError(MonographError):
    """A request that needs more than its bytes in the queue."""

    def __init__(self) -> None:
        super().__init__("the request is not plain")
