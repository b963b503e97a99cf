"""Feeds as what decides code: the shapes and element types of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.ir import Array
from monograph.runtime.cache.store import Shapes


def without_data(shapes: Shapes, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """Return arrays that take no memory: only their shapes matter."""
    return {n: np.broadcast_to(np.zeros((), dtypes[n]), shape) for n, shape in shapes.items()}


def dtypes_of(feeds: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the element types of feeds."""
    return {n: x.dtype.name if x.dtype.isbuiltin == 2 else x.dtype.str for n, x in feeds.items()}


def arrays_of(feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays among feeds."""
    return {name: x for name, x in feeds.items() if isinstance(x, np.ndarray)}
