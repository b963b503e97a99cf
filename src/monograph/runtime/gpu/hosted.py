"""Runs on arrays of the host: one launch, with copies inside or kernels that reach that far."""

from __future__ import annotations

import torch

from monograph.runtime.gpu.graphs import TO_DEVICE, TO_HOST, Copy, GraphError
from monograph.runtime.gpu.recorded import Maker, Recorded
from monograph.runtime.gpu.slabs import Slab, SlabLayout

AUTO, DIRECT, COPY = "auto", "direct", "copy"
WAYS = (AUTO, DIRECT, COPY)
SLAB = "slab"
"""The one address of a graph with copies that moves."""


def is_direct(way: str, maker: Maker) -> bool:
    """Whether kernels read and write the host's memory themselves.

    They do if asked to. On an H200 copies were faster for every model tried (48 us against 102 for
    4 KB in): a product reads its input once for every tile of the result.
    """
    donates = any(s.over for s in maker.executable.layout.outputs)
    if donates or not maker.all_exact:  # libraries are given tensors of the device
        return False
    return way == DIRECT


def with_copies(maker: Maker, layout: SlabLayout, slab: Slab) -> Recorded:
    """A graph that begins and ends with a copy between a slab and a block of the device."""
    graphs = maker.graphs
    place = maker.executable.device.place
    block = torch.empty(layout.nbytes, dtype=torch.uint8, device=place)
    start, first, last = block.data_ptr(), layout.in_to, layout.nbytes - layout.out_from

    at = layout.out_from
    bring = Copy(start, slab.address, first, TO_DEVICE) if first else None
    fetch = Copy(slab.address + at, start + at, last, TO_HOST) if last else None
    recorder, taken = maker.fixed(layout.memory(block), bring, fetch)
    try:
        places = []
        for name, word, offset in (("before", 8, 0), ("after", 0, layout.out_from)):
            if name in taken.edges:
                params = graphs.read(taken.edges[name])
                if params is None or params.word(0, word).value != slab.address + offset:
                    raise GraphError("a copy was not recorded as what it is")
                places.append((params, params.word(0, word), offset))
        made = Recorded(graphs, taken, {SLAB: places}, {SLAB: slab.address})
    except BaseException:
        taken.graph.close()
        raise
    made.kept += [recorder.pool, block]
    return made
