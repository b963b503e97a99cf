"""Code that commands share: requests from options, and output of results and errors.

Exit codes: 0 success, 1 a check failed, 2 wrong usage or a wrong model.
"""

from __future__ import annotations

import inspect
import io
import json
import math
import os
import re
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast, get_type_hints

import typer

from monograph.cli.options import CacheDir, NoCache
from monograph.config import cache_directory
from monograph.errors import ConfigError, MonographError

# Most modules import numpy and onnx, which takes a second. Commands import what they use, so that
# --help and --version are fast.
if TYPE_CHECKING:
    from rich.console import Console

    from monograph.pipeline import PassOptions
    from monograph.report.commands.execute import RunRequest

CHECK_FAILED, BAD_USAGE = 1, 2
_AS_PYTHON = {
    re.compile(r"""\b(target|capture|precision|tune)=(["'])([\w:]+)\2"""): r"--\1 \3",
    re.compile(r"\bthreads= "): "--threads ",
    re.compile(r"\bdims={\.\.\.}"): "--dim NAME=SIZE",
}
"""Patterns of Python options in hints, and the options of the command line for them."""


def pass_options_from(settings: list[str] | None, disabled: list[str] | None) -> PassOptions:
    from monograph.pipeline import PassOptions, parse_pass_options

    return PassOptions(parse_pass_options(settings or []), frozenset(disabled or []))


def make_request(
    model: Path,
    target: str | None,
    dims: list[str] | None,
    files: list[str] | None,
    archive: Path | None,
    seed: int,
    *,
    ranges: list[str] | None = None,
    values: list[str] | None = None,
    **options: Any,
) -> RunRequest:
    from monograph.report.commands.execute import RunRequest
    from monograph.report.commands.input_files import read_array
    from monograph.report.render.progress import compile_bar
    from monograph.runtime.inputs import Chosen

    sizes = sizes_from(dims)
    given = {n: read_array(Path(text)) for n, text in _pairs("--input", "NAME=FILE.npy", files)}
    chosen = {name: value for name, value in options.items() if value is not None}
    numbers = Chosen(
        {n: _range(n, text) for n, text in _pairs("--input-range", "NAME=LOW:HIGH", ranges)},
        {n: _number("--value", n, text) for n, text in _pairs("--value", "NAME=NUMBER", values)},
    )
    return RunRequest(model, target, sizes, given, archive, seed, compile_bar(), chosen, numbers)


def sizes_from(dims: list[str] | None) -> dict[str, int]:
    """Return the sizes of `--dim` options, one size each."""
    return {n: _size(n, text) for n, text in _pairs("--dim", "NAME=SIZE", dims)}


def _pairs(option: str, form: str, texts: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or []:
        name, found, value = text.rpartition("=")
        if not found or not name or not value:
            raise ConfigError(f"`{option}` must be {form}", given=text)
        pairs.append((name, value))
    if twice := [name for name, count in Counter(n for n, _ in pairs).items() if count > 1]:
        raise ConfigError(f"`{option}` must not be given twice for a name", given=", ".join(twice))
    return pairs


def _size(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"`--dim {name}` must be a size", expected="0, 1, 2, ...", given=text)
    return int(text)


def _range(name: str, text: str) -> tuple[float, float]:
    low, found, high = text.partition(":")
    if not found:
        raise ConfigError(
            f"`--input-range {name}` must be LOW:HIGH", expected="0:30000", given=text
        )
    first, last = (_number("--input-range", name, part) for part in (low, high))
    return first, last


def _number(option: str, name: str, text: str) -> float:
    """Return an exact integer or a finite float."""
    for kind in (int, float):
        try:
            number = kind(text)
            if math.isfinite(number):
                return number
        except (ValueError, OverflowError):
            continue
    raise ConfigError(f"`{option} {name}` must be a number", expected="3, -1, 0.5, ...", given=text)


def with_cache(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options --cache-dir and --no-cache."""

    @wraps(command)
    def run(*, cache_dir: Path | None = None, no_cache: bool = False, **given: Any) -> None:
        if no_cache and cache_dir is not None:
            raise typer.BadParameter("give --cache-dir or --no-cache, not both")
        chosen = "" if no_cache else None if cache_dir is None else str(cache_dir.absolute())
        with cache_directory(chosen):
            command(**given)

    # Typer reads the parameters: those of the command with their types evaluated, and two more.
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=kind, annotation=hints[p.name]) for p in own]
    for name, type_, default in (("cache_dir", CacheDir, None), ("no_cache", NoCache, False)):
        hints[name] = type_
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=type_))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = hints
    return run


def note(line: str) -> None:
    tell(f"note: {line}")


def tell(text: str) -> None:
    """Print text on stderr; on a terminal it is wrapped between words."""
    from rich.text import Text

    from monograph.report.render.console import wrapped
    from monograph.report.render.progress import clear_bars

    clear_bars()
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        lines = [p for line in text.split("\n") for p in wrapped(Text(line), width, indent=4)]
        text = "\n".join(line.plain for line in lines)
    print(text, file=sys.stderr)


def show(as_json: bool, found: dict[str, Any], show: Callable[[Console], None]) -> None:
    """Print results on stdout, as JSON or as tables; a closed pipe does not end the command."""
    from monograph.report.render import tables
    from monograph.report.render.console import console
    from monograph.report.render.progress import clear_bars

    clear_bars()
    try:
        with _to_stdout():
            if as_json:
                print(json.dumps(tables.plain({"ok": True} | found), allow_nan=False))
            else:
                show(console())
    except BrokenPipeError:
        _leave_stdout()  # the exit code still says if a check failed


def print_piece(text: Any, end: str) -> None:
    """Print a part of a result immediately."""
    with _to_stdout():
        print(text, end=end)


@contextmanager
def _to_stdout() -> Iterator[None]:
    """Write everything that is printed inside, or raise an error."""
    try:
        yield
        _flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        message = _unwritten(e)
        _leave_stdout()
        raise ConfigError(message) from e


def _flush() -> None:
    """Flush stdout while errors can still be reported."""
    if sys.stdout is not None:  # closed (`>&-`)
        sys.stdout.flush()


def _leave_stdout() -> None:
    """Redirect stdout to nowhere: Python would otherwise write the rest at exit and fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _unwritten(e: OSError) -> str:
    """Return the error message for standard output, with the name of its file if it has one."""
    try:
        name = f" ({os.readlink('/proc/self/fd/1')})"
    except OSError:  # another system than Linux, or stdout is closed
        name = ""
    return f"standard output{name} cannot be written: {e.strerror or e}"


class _Told:
    """Stderr that ignores failed writes: notes and errors are then lost."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def writing() -> Iterator[None]:
    """Handle errors of stdout for a whole command, also for --help and --version.

    A full or closed stderr (`2>&-`) changes nothing else.
    """
    if not isinstance(sys.stderr, _Told):
        sys.stderr = cast("TextIO", _Told(sys.stderr or io.StringIO()))
    try:
        try:
            yield
        finally:
            _flush()
    except BrokenPipeError:
        _leave_stdout()
        sys.exit(0)
    except SystemExit as e:
        if not isinstance(e.__context__, BrokenPipeError):
            raise
        _leave_stdout()  # typer treats it as a failure
        sys.exit(0)
    except OSError as e:
        message = _unwritten(e)
        _leave_stdout()
        print(f"error: {message}", file=sys.stderr)
        sys.exit(BAD_USAGE)


@contextmanager
def reporting(as_json: bool, debug: bool) -> Iterator[None]:
    """Turn errors into one message on stderr and an exit code; --debug shows the traceback."""
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:
        # The reader of the output has ended (`| head`).
        _leave_stdout()
        raise typer.Exit(0) from None
    except Exception as e:
        if debug:
            traceback.print_exc()
        if isinstance(e, MonographError):
            for python, option in _AS_PYTHON.items():
                e.hint = None if e.hint is None else python.sub(option, e.hint)
            message = str(e)
        elif isinstance(e, OSError):
            problem = f"a file cannot be read or written: {e.strerror or e}"
            message = str(ConfigError(problem, given=e.filename))
        elif isinstance(e, MemoryError):
            message = str(e) or "out of memory"
        else:
            message = (
                f"internal error: {type(e).__name__}: {e}"
                "\n  what to do: see it in full with --debug and report it"
            )
        print_failure(as_json, message)
        raise typer.Exit(BAD_USAGE) from None


def print_failure(as_json: bool, message: str, found: dict[str, Any] | None = None) -> None:
    """Print an error on stderr; with `as_json` also on stdout, with the results so far."""
    try:
        if as_json:
            print(json.dumps({"ok": False, "error": message} | (found or {})))
        _flush()
    except OSError:  # stdout may be what is wrong
        _leave_stdout()
    tell(f"error: {message}")
