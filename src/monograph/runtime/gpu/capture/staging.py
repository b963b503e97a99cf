"""Ports that cannot move: a graph has memory of its own for them, with copies at both its ends.

No driver changes nodes inside a branch or a loop, and not every library says where its addresses
are. The copies of such a graph are nodes like others, and move instead: a run is one launch still.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from monograph.runtime.gpu.capture.capture import Memory, Place, Recorder, Recording
from monograph.runtime.gpu.driver.graphs import MEMCPY, ON_DEVICE, CopyNode, GraphError, Graphs

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
