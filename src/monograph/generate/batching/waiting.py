"""Sequences that wait for a slot, and the counts of an engine's work."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from monograph.generate.batching.request import Request


@dataclass
class BatchCounters:
    """The work so far."""

    submitted: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Ended sequences by finish reason."""
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens whose rows came from another sequence."""
    prefix_hits: int = 0
    copied_rows: int = 0
    prefill_runs: int = 0
    prefill_tokens: int = 0
    steps: int = 0
    step_rows: int = 0
    """Rows of all steps, those without a sequence too."""
    idle_rows: int = 0
    """Rows of steps without a sequence."""
    generated_tokens: int = 0
    checks: int = 0
    """Steps that checked proposed tokens."""
    checked_tokens: int = 0
    accepted_tokens: int = 0
    """Proposed tokens that were right."""


class RequestQueue:
    """Sequences that wait for a slot: clients take turns, each in the order of its submits."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Request]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, request: Request) -> None:
        self._queues.setdefault(request.client, deque()).append(request)

    def first(self) -> Request | None:
        return next((q[0] for q in self._queues.values()), None)

    def take(self) -> Request:
        """Remove and return the first one; its client goes to the end."""
        client, queue = next(iter(self._queues.items()))
        request = queue.popleft()
        del self._queues[client]
        if queue:
            self._queues[client] = queue
        return request

    def remove(self, ended: Callable[[Request], bool]) -> list[Request]:
        """Remove and return those for which a condition holds."""
        found = [r for q in self._queues.values() for r in q if ended(r)]
        for request in found:
            queue = self._queues[request.client]
            queue.remove(request)
            if not queue:
                del self._queues[request.client]
        return found
