"""The layout of the context that native functions get.

barrier state | one pointer per slot | two words per fault

The writer and the caller of a native function agree on this and nothing else.
"""

from __future__ import annotations

ARENA, CONSTANTS, FIRST_PORT = 0, 1, 2
"""Slots of the context, after the barrier state: pointers to memory, then to each port."""
FAULT_BYTES = 16
"""The bytes of a fault after the slots: an i64 flag, an i64 with the data."""
SLACK = 256
"""Bytes that vectors may read beyond the end of the arena and of the constants."""
