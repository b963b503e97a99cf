"""Standard output as a console, and tables that break no word.

A table that does not fit loses its lines first. One that still does not fit becomes records: each
row is a paragraph of "column: value".
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

UNLIMITED = 10_000
"""The width of a console that wraps no line, in columns."""
INDENT = "  "
SHORT = 12
"""The width of a cell that is not broken between words, in columns."""


class Output(Console):
    """Standard output. It wraps text between words and leaves long words whole."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the caller decides: a closed pipe is no failed check

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) != 1 or not isinstance(objects[0], str):
            super().print(*objects, **options, crop=False)
            return
        shown: dict[str, Any] = {name: options.get(name) for name in ("markup", "highlight")}
        for line in self.render_str(objects[0], **shown).split(allow_blank=True):
            for part in wrapped(line, self.width):
                super().print(part, overflow="ignore", crop=False)


def console() -> Console:
    """Return standard output: as wide as the terminal, and without wrapping for a file.

    Users search files with grep, so no name may be wrapped there.
    """
    if not Console().is_terminal:
        return Output(width=UNLIMITED)
    columns, lines = shutil.get_terminal_size()
    return Output(width=columns, height=lines)


def wrapped(text: Text, width: int, indent: int | None = None) -> list[Text]:
    """Break a line between words; a word that is longer than a line stays whole.

    `indent` is that of the further lines: two columns more than the first line if it has any.
    """
    start = len(text.plain) - len(text.plain.lstrip(" "))
    further = (start and start + 2) if indent is None else indent
    breaks, used = [], 0
    for piece in re.finditer(r"\s*(\S+)", text.plain):
        if used and used + cell_len(piece[0]) > width:
            breaks.append(piece.start(1))
            used = further + cell_len(piece[1])
        else:
            used += cell_len(piece[0])
    parts = list(text.divide(breaks))
    for part in parts:
        part.rstrip()
    for part in parts[1:]:
        part.pad_left(further)
    return parts


def table(title: str | None, *columns: str, right: tuple[int, ...] = ()) -> Rows:
    """Return an empty table; `right` numbers the columns that are aligned to the right."""
    rows = Rows(title)
    for index, column in enumerate(columns):
        rows.add_column(column, justify="right" if index in right else "left", overflow="fold")
    return rows


class Rows(Table):
    """A table under a bold title, in the widest form that the console has room for."""

    def __init__(self, title: str | None) -> None:
        super().__init__()
        self.heading = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield from wrapped(Text(self.heading, "bold", overflow="ignore"), options.max_width)
        if self._fits(options.max_width):
            yield from super().__rich_console__(console, options)
        else:
            yield from self._records(options.max_width)

    def _fits(self, width: int) -> bool:
        """Choose lines and column widths so that no word breaks; False if there are none."""
        sizes = [_sizes([c.header, *c.cells]) for c in self.columns]
        words, texts = [s[0] for s in sizes], [s[1] for s in sizes]
        lines = 3 * len(sizes) + 1
        if sum(texts) + lines <= width:
            return True
        if sum(words) + lines > width:
            self.box, self.padding, lines = None, (0, 2, 0, 0), 2 * len(sizes) - 2
            self.pad_edge = False
            if sum(words) + lines > width:
                return False
        room = width - lines - sum(words)
        wanted = max(1, sum(texts) - sum(words))
        for column, word, text in zip(self.columns, words, texts, strict=True):
            column.width = min(text, word + room * (text - word) // wanted)
        return True

    def _records(self, width: int) -> Iterator[Text]:
        """Yield every row as a paragraph."""
        names = [_text(c.header) for c in self.columns]
        for number, row in enumerate(zip(*(c.cells for c in self.columns), strict=True)):
            style, start = self.rows[number].style or "", ""
            line = Text()
            for name, cell in zip(names, map(_text, row), strict=True):
                if not cell.plain:
                    continue
                pair = Text.assemble((f"{name}: " if name.plain else "", "bold"), cell)
                if line and cell_len(line.plain) + len(INDENT) + cell_len(pair.plain) <= width:
                    line.append(INDENT).append_text(pair)
                    continue
                if line:
                    yield line
                whole = Text.assemble(start, pair, style=style, overflow="ignore")
                *parts, line = wrapped(whole, width)
                start = INDENT
                if parts:
                    yield from (*parts, line)
                    line = Text()
            if line:
                yield line


def _sizes(cells: list[RenderableType]) -> tuple[int, int]:
    """Return the widths of the longest word and of the longest cell; a header comes first.

    A short cell counts as one word: "1.2 ms" and "[1, 6]" stay on one line.
    """
    header, *texts = [_text(cell).plain for cell in cells]
    words = header.split()
    for text in texts:
        words += [text] if cell_len(text) <= SHORT else text.split()
    return max(map(cell_len, words), default=0), max(map(cell_len, (header, *texts)))


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))
