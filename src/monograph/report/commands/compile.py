"""Compiles a model ahead of time: what `monograph compile` does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from monograph.errors import ConfigError
from monograph.report.commands.execute import Notes, RunRequest, about_sizes, advising, check_folder
from monograph.report.render.tables import count_text
from monograph.runtime.cache.source import is_package


@dataclass(frozen=True)
class Compiled:
    """A package that was written, and what it took."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    kernels: int
    threads: int
    """Threads that it runs on; 0 for code that is for a GPU."""
    arch: str
    """The GPU's architecture that it is for, or ""."""
    nbytes: int
    seconds: float
    from_disk: bool
    """Whether the code was found in the cache."""

    def as_json(self) -> dict[str, Any]:
        return {
            "output": str(self.path),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "kernels": self.kernels,
            **({"arch": self.arch} if self.arch else {"threads": self.threads}),
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "from_cache": self.from_disk,
        }


def compile_model(request: RunRequest, output: Path, note: Notes, **options: Any) -> Compiled:
    """Compiles a model for the shapes that a request asks for, and writes a package."""
    if output.suffix != ".mono":
        raise ConfigError("a package is a .mono file", given=output, hint=f"name it {output}.mono")
    if is_package(request.model):
        raise ConfigError(
            "it is compiled already: a package holds no model",
            given=str(request.model),
            hint="compile the model that it was made from",
        )
    check_folder(output)  # before minutes of compilation, not after
    started = time.perf_counter()
    session = request.load(**options)
    if session.config.target == "reference":
        raise ConfigError("the reference has no code to keep", expected="cpu | gpu")
    made = request.inputs(session, about_sizes(note))
    feeds = made.feeds
    with advising(made):
        executable = session.executable(feeds)
    session.save(output)
    return Compiled(
        output,
        {name: x.shape for name, x in feeds.items()},
        executable.kernels,
        0 if session.config.on_gpu else executable.threads,
        session.arch,
        output.stat().st_size,
        time.perf_counter() - started,
        bool(session.stats["from_disk"]),
    )


def show_compiled(out: Console, model: str, found: Compiled) -> None:
    """What was written, for people."""
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in found.shapes.items())
    origin = "found in the cache" if found.from_disk else "compiled"
    where = found.arch or count_text(found.threads, "thread")
    out.print(
        f"{model}: {found.kernels} kernels for {shapes or 'no inputs'} on {where},"
        f" {origin} in {found.seconds:.2f} s",
        highlight=False,
    )
    out.print(f"{found.path}: {found.nbytes:,} bytes", highlight=False)
