"""The context that native functions get: what lies where in it.

    state of the barrier | a pointer a slot | two words a fault

Whoever writes a native function and whoever calls one agree here, and on nothing else.
"""

from __future__ import annotations

ARENA, CONSTANTS, FIRST_PORT = 0, 1, 2
"""Slots of the context, behind the barrier's state: pointers to memory, then to each port."""
FAULT_BYTES = 16
"""What each fault of a kernel takes behind the slots: i64 whether it came, i64 the data."""
SLACK = 256
"""Bytes that vectors may read beyond the end of the arena and of the constants."""
