"""A fault of Triton's interpreter, mended while it interprets.

It says of the result of a comparison that it holds int32, and makes that true where such a scalar
becomes a block. As a mask the block is right all the same, but since Triton 3.9 a mask that does
not hold bools is refused. The compiler knows better: nothing is mended there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def mend_interpreter() -> None:
    """Lets a bool stay one when it becomes a block."""
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    plain = builder.create_splat

    def create_splat(self: Any, kind: Any, given: Any) -> Any:
        made = plain(self, kind, given)
        if given.data.dtype == np.bool_:
            made.data = made.data.astype(np.bool_)
        return made

    builder.create_splat = create_splat
