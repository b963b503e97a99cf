"""Open sizes in texts: code has a register for each, messages have a number."""

from __future__ import annotations

import re
from collections.abc import Callable

SIZE_REGISTER = re.compile(r"%size\.(\d+)")
"""The text of an open size; the number is its place in the table of the compilation."""


def with_numbers(text: str, number: Callable[[int], int]) -> str:
    """Return a text with numbers instead of registers, given the number of each place."""
    return SIZE_REGISTER.sub(lambda found: str(number(int(found[1]))), text)
