"""Feeds of an exported decoder as its file has it: one token after a past of some length."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from monograph.frontend.onnx import read_model
from monograph.generate.discover.decoder import MERGED, find_roles, fold_merged
from monograph.generate.discover.folder import Settings
from monograph.generate.rewrite.surgery import Surgery
from monograph.ir import Array


def example_step(settings: Settings, past: int, seed: int = 0) -> dict[str, Array]:
    """Return feeds for one token after `past` tokens, in one row; caches and token are random.

    The sizes of mask and caches depend on each other, and exporters leave widths of caches open:
    sizes that are drawn one by one do not fit.
    """
    proto = read_model(settings.model, None).proto
    kinds = {i.name: _dtype(i) for i in proto.graph.input}
    merged = fold_merged(proto)
    decoder = find_roles(Surgery(proto), settings)
    random = np.random.default_rng(seed)
    token = random.integers(0, decoder.vocabulary, (1, 1))
    feeds = {decoder.tokens: token.astype(kinds[decoder.tokens])}
    if decoder.mask is not None:
        feeds[decoder.mask] = np.ones((1, past + 1), kinds[decoder.mask])
    if decoder.positions is not None:
        feeds[decoder.positions] = np.full((1, 1), past, kinds[decoder.positions])
    for cache in decoder.caches:
        rows = random.standard_normal((1, cache.heads, past, cache.size), np.float32)
        feeds[cache.past] = rows.astype(kinds[cache.past])
    if merged:
        feeds[MERGED] = np.ones(1, np.bool_)
    return feeds


def _dtype(info: onnx.ValueInfoProto) -> np.dtype[np.generic]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
