"""The command `monograph compile`: compile a model ahead of time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from monograph.errors import ConfigError
from monograph.report.commands.execute import Notes, RunRequest, about_sizes, advising, check_folder
from monograph.report.render.tables import count_text
from monograph.runtime.cache.store import is_package


@dataclass(frozen=True)
class Compiled:
    """A written package."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    kernels: int
    threads: int
    """The number of threads; 0 for a GPU."""
    arch: str
    """The GPU architecture, or ""."""
    nbytes: int
    seconds: float
    from_disk: bool
    """True if the code came from the cache."""

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
    """Compile a model for the shapes of a request, and write a package."""
    if output.suffix != ".mono":
        raise ConfigError(
            "a package must be a .mono file", given=output, hint=f"name it {output}.mono"
        )
    if is_package(request.model):
        raise ConfigError(
            "`compile` needs a model, not a package",
            given=str(request.model),
            hint="compile the model that it was made from",
        )
    check_folder(output)  # before minutes of compilation, not after
    started = time.perf_counter()
    session = request.load(**options)
    if session.config.target == "reference":
        raise ConfigError("`compile` needs a target that compiles", expected="cpu | gpu")
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
    """Print the kernels, shapes and size of the package."""
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in found.shapes.items())
    origin = "found in the cache" if found.from_disk else "compiled"
    where = found.arch or count_text(found.threads, "thread")
    out.print(
        f"{model}: {found.kernels} kernels for {shapes or 'no inputs'} on {where},"
        f" {origin} in {found.seconds:.2f} s",
        highlight=False,
    )
    out.print(f"{found.path}: {found.nbytes:,} bytes", highlight=False)
