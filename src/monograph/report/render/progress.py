"""A progress bar for compilations that take a while: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from monograph.runtime.progress import READY, Progress, silent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display

LABEL = 48
"""Characters of a stage that are shown: one of measuring says what is measured."""
DELAY_SECONDS = 1.0
"""Work that is over sooner is not worth a bar."""


def compile_bar() -> Progress:
    """What shows how far a compilation is to whoever sits at the terminal; nothing elsewhere."""
    return CompileBar() if sys.stderr.isatty() else silent


class CompileBar:
    """Shows the stage under way and what of it is done, once it has all taken a while."""

    def __init__(self, console: Console | None = None, delay: float = DELAY_SECONDS) -> None:
        self._console = console
        self._delay = delay
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._display: Display | None = None
        self._at = ("", 0, 1)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Takes what `monograph.load` reports to its `progress`."""
        with self._lock:
            if stage == READY:
                self._close()
                return
            self._at = (stage, done, total)
            if self._display is not None:
                self._update(self._display)
            elif self._timer is None:
                self._timer = threading.Timer(self._delay, self._show)
                self._timer.daemon = True
                self._timer.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        with self._lock:
            if self._timer is None:  # Work was over in the meantime.
                return
            columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
            console = self._console or Console(stderr=True)
            self._display = Progress(*columns, Elapsed(), console=console, transient=True)
            self._display.add_task("")
            self._update(self._display)
            self._display.start()

    def _update(self, display: Display) -> None:
        stage, done, total = self._at
        stage = stage[:LABEL]
        display.update(display.task_ids[0], description=stage, completed=done, total=total)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._display is not None:
            self._display.stop()
            self._display = None
