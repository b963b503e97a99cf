"""Guards: what sizes must be for compiled code to be valid; arithmetic on ranges."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import TypeAlias

Bounds: TypeAlias = tuple[float, float]
"""The least and greatest value, infinite where there is none."""
_OWN = __name__.removesuffix("_guards")
"""The beginning of the names of the modules about sizes."""


@dataclass
class SizeGuard:
    """The range of an expression without its constant, and the values that it does not have."""

    least: float = -math.inf
    most: float = math.inf
    other_than: set[int] = field(default_factory=set)
    reason: str = ""
    """The code that asked first, for each limit."""

    def ask(self, who: str) -> None:
        """Note who asked for a limit."""
        if who not in self.reason.split(", "):
            self.reason = f"{self.reason}, {who}" if self.reason else who


def described(guard: SizeGuard) -> str:
    """Return a guard as a text."""
    least, most = (int(n) if math.isfinite(n) else n for n in (guard.least, guard.most))
    parts = []
    if least == most:
        parts.append(f"must be {least}")
    elif math.isfinite(least) and math.isfinite(most):
        parts.append(f"must be in {least}..{most}")
    elif math.isfinite(least):
        parts.append(f"must be at least {least}")
    elif math.isfinite(most):
        parts.append(f"must be at most {most}")
    if guard.other_than:
        parts.append(f"must not be {', '.join(map(str, sorted(guard.other_than)))}")
    return f"{' and '.join(parts)} ({guard.reason})"


def asker() -> str:
    """Return the function that asked for a decision: the first one that is not about sizes."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return "unknown"
    module = frame.f_globals.get("__name__", "").removeprefix("monograph.")
    return f"{module}.{frame.f_code.co_name}:{frame.f_lineno}"


def interval_product(a: Bounds, b: Bounds) -> Bounds:
    corners = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def floored(a: float, b: float) -> float:
    if math.isinf(a):
        return a
    if math.isinf(b):
        return 0 if a >= 0 else -1
    return a // b
