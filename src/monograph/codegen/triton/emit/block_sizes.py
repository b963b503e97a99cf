"""Sizes of blocks: Triton's are powers of two."""

from __future__ import annotations


def power(n: int) -> int:
    """Return the least power of two that is not below a size."""
    return 1 << max(n - 1, 0).bit_length()
