"""A process that makes and judges cases for the runner, one at a time: see `tests.campaign.pool`.

A message is a pickle with its length before it. Requests come on stdin, and replies go to what was
stdout; what libraries print goes to stderr.
"""

from __future__ import annotations

import os
import pickle
import resource
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any

HEAD = struct.Struct("<Q")
MEMORY = 12 << 30
"""Address space of a worker that uses no GPU."""


def send(stream: IO[bytes], message: Any) -> None:
    raw = pickle.dumps(message)
    stream.write(HEAD.pack(len(raw)) + raw)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next message; None at the end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    raw = stream.read(size)
    return pickle.loads(raw) if len(raw) == size else None


def answer(request: dict[str, Any], begin: Callable[[str], None]) -> dict[str, Any]:
    """Judges the case of a request: one that it names, or one that it brings along."""
    from tests.campaign.judge import judge
    from tests.campaign.kinds import KINDS

    case = request.get("case")
    if case is None:
        try:
            case = KINDS[request["kind"]](request["seed"], request["number"])
        except Exception:
            return {"generator": traceback.format_exc(limit=-8)}
    verdict = judge(case, request["sides"], request["turn"], begin)
    reply: dict[str, Any] = {"verdict": verdict, "ops": case.ops}
    if verdict.problems:
        reply["case"] = case
    return reply


def main() -> None:
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if not {"gpu", "gpu-any"} & {*sys.argv[1:]}:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            reply = answer(request, lambda side: send(replies, {"begins": side}))
        except Exception:
            reply = {"generator": traceback.format_exc(limit=-8)}
        send(replies, reply)


if __name__ == "__main__":
    main()
