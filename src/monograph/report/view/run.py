"""The command `monograph view`: collects what is wanted, and writes the page and the pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError
from monograph.generate.discover.example import example_step
from monograph.generate.discover.folder import Settings
from monograph.report.commands.decode import POSITIONS, DecodeBench
from monograph.report.commands.execute import Notes, RunRequest
from monograph.report.view import charts, marks
from monograph.report.view.collect import ModelView, Wanted, collect
from monograph.report.view.compare import compared
from monograph.report.view.data import view_json
from monograph.report.view.page import code_of, pictures, view_page
from monograph.runtime.atomic_write import replacing_named
from monograph.runtime.inputs import Chosen


@dataclass(frozen=True)
class Report:
    """A collected report: its content, its pictures and its code."""

    data: dict[str, Any]
    shown: dict[str, str]
    code: dict[str, Any]
    graphs: dict[str, str]
    """The graph before and after, as pictures for files."""

    @property
    def title(self) -> str:
        return Path(self.data["model"]).name

    def page(self) -> str:
        """Return the report as one page of HTML."""
        return view_page(self.data, self.shown, self.code, self.title)


def with_example(
    request: RunRequest, decoder: Settings, decoding: DecodeBench | None, note: Notes
) -> RunRequest:
    """Return a request with the inputs of one step of a decoder, if the caller chose none."""
    if request.given or request.archive or request.dims or request.chosen != Chosen():
        return request
    past = POSITIONS[0] if decoding is None else max(s.position for s in decoding.steps)
    note(f"graphs and steps are those of one token after {past} tokens (seed {request.seed})")
    return replace(request, given=example_step(decoder, past, request.seed))


def make_report(
    request: RunRequest,
    wanted: Wanted,
    note: Notes,
    *,
    against: Mapping[str, Any] | None = None,
    decoding: DecodeBench | None = None,
) -> Report:
    """Return the report of a model; `against` is the content of another one."""
    view = collect(request, wanted, note)
    return report_of(view, against=against, decoding=decoding)


def report_of(
    view: ModelView,
    *,
    against: Mapping[str, Any] | None = None,
    decoding: DecodeBench | None = None,
) -> Report:
    """Return the report of what was collected."""
    data = view_json(view)
    found = None if decoding is None else decoding.as_json()
    if found is not None:
        data["decoding"] = found
    if against is not None:
        data["against"] = compared(data, against)
    data["kinds"] = charts.kinds(view)
    return Report(data, pictures(view, found), code_of(view, data), _graphs(data))


def _graphs(data: Mapping[str, Any]) -> dict[str, str]:
    colours = data["kinds"]
    ops = {op: i % marks.HUES for i, op in enumerate(dict.fromkeys(n[1] for n in data["nodes"]))}
    before = [(f"{n[1]} {n[0]}", ops[n[1]]) for n in data["nodes"]]
    after = [(f"{i} {s['kind']}", colours[s["kind"]]) for i, s in enumerate(data["steps"])]
    return {
        "graph-before": charts.graph(before, data["edges"], data["places"]),
        "graph-after": charts.graph(after, data["step_edges"], data["step_places"]),
    }


def write_report(report: Report, target: Path) -> int:
    """Write the page; return its size in bytes."""
    content = report.page().encode()
    with replacing_named(target) as file:
        file.write(content)
    return len(content)


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """Write every picture as an SVG file of its own."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError("`--svg` must name a folder", given=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in {**report.shown, **report.graphs}.items():
        path = folder / f"{name}.svg"
        with replacing_named(path) as file:
            file.write(marks.styled(picture).encode())
        written.append(path)
    return written
