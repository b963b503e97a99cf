"""A progress bar for compilations and measurements: on stderr, and only on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from monograph.runtime.progress import READY, Progress, silent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display

LABEL = 40
"""The longest stage name in a bar, in characters."""
BAR = 20
"""The width of a bar, in columns: the line must fit a terminal of 60."""
DELAY_SECONDS = 1.0
"""The seconds after which a bar appears; shorter work shows none."""

_shown: list[ProgressBar] = []
"""The bars of this command."""


def compile_bar() -> Progress:
    """Return a bar for a terminal that can redraw a line, and a silent function elsewhere."""
    if not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return silent
    bar = ProgressBar()
    _shown.append(bar)
    return bar


def clear_bars() -> None:
    """Erase all bars, so that text can be printed."""
    for bar in _shown:
        bar(READY, 1, 1)


class ProgressBar:
    """Shows the current stage and its progress, once the work has taken `delay` seconds."""

    def __init__(self, console: Console | None = None, delay: float = DELAY_SECONDS) -> None:
        self._console = console
        self._delay = delay
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._display: Display | None = None
        self._at = ("", 0, 1)
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take a report of `monograph.load` (argument `progress`)."""
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
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._timer is None:  # The work has ended in the meantime.
                return
            self._display = Progress(
                TextColumn("{task.description:>8}"),
                BarColumn(BAR),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console or Console(stderr=True),
                transient=True,
            )
            self._display.add_task("")
            self._update(self._display)
            self._display.start()

    def _update(self, display: Display) -> None:
        stage, done, total = self._at
        task = display.task_ids[0]
        if (kind := stage.partition(" ")[0]) != self._stage:
            # The remaining time follows from the pace of this stage alone.
            display.reset(task, total=total)
            self._stage = kind
        display.update(task, description=stage[:LABEL], completed=done, total=total)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._display is not None:
            self._display.stop()
            self._display = None
        self._stage = ""
