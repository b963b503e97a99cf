"""The hook of `mkdocs.yml`: pages of the site that are made from code and from measurements.

`reference.md` comes from signatures and docstrings, `performance.md` from `benchmarks/results`.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from scripts.diagram import with_drawings

from monograph import Generator, Session, errors, load
from monograph.config import Config
from monograph.runtime.pending import Pending

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
PLOTS = {"cpu": RESULTS / "cpu-x86-64.svg", "gpu": RESULTS / "gpu-h200.svg"}
COLUMNS = 72
"""The most columns of a signature on one line."""
_PARAMETER = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and plots; mkdocs calls this."""
    pages = {"reference.md": reference_page(), "performance.md": performance_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name, path in PLOTS.items():
        files.append(File.generated(config, f"images/{name}.svg", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Draw the flowcharts of a page; mkdocs calls this."""
    return with_drawings(markdown)


def reference_page() -> str:
    """Return the page of all public classes and functions."""
    parts = [
        "# Reference",
        "This page is made from the code. [The Python API](python-api.md) has examples.",
    ]
    parts += ["## monograph.load", *_function("load", load)]
    parts.append("[Session](python-api.md#session) also lists the attributes of a session.")
    for kind in (Session, Pending, Generator):
        parts += [f"## {kind.__name__}", _prose(inspect.getdoc(kind) or ""), *_members(kind)]
    parts += ["## Config", _prose(inspect.getdoc(Config) or ""), *_options()]
    parts += ["## Errors", "[Errors](errors.md) says when each is raised.", *_errors()]
    return "\n\n".join(parts) + "\n"


def _function(name: str, member: Any) -> list[str]:
    try:
        signature = str(inspect.signature(member)).replace("monograph.", "")
    except (TypeError, ValueError):  # a member of a C type
        signature = "(...)"
    signature = re.sub(r"\(self(, )?", "(", signature).replace("'", "")
    return [f"```text\n{_broken(name + signature)}\n```", _prose(inspect.getdoc(member) or "")]


def _broken(call: str) -> str:
    """Return a long signature with one parameter a line."""
    if len(call) <= COLUMNS:
        return call
    start, end = call.index("(") + 1, call.rindex(") -> ") if ") -> " in call else len(call) - 1
    pieces, depth = [""], 0
    for letter in call[start:end]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    inside = "".join(f"    {piece.strip()},\n" for piece in pieces)
    return f"{call[:start]}\n{inside}{call[end:]}"


def _members(kind: type) -> list[str]:
    parts: list[str] = []
    for name, member in inspect.getmembers(kind):
        code = member.fget if isinstance(member, property) else member
        # Members that a class of Python's library has are described there.
        if name.startswith("_") or not inspect.isfunction(inspect.unwrap(code)):
            continue
        if not code.__module__.startswith("monograph."):
            continue
        parts.append(f"### {kind.__name__}.{name}")
        if isinstance(member, property):
            parts.append(_prose(inspect.getdoc(member) or ""))
        else:
            parts += _function(name, member)
    return parts


def _prose(doc: str) -> str:
    """Return a docstring as Markdown, with its parameters as a list."""
    lines, inside = [], False
    for line in doc.splitlines():
        if found := _PARAMETER.match(line):
            lines += [] if inside else [""]
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            line, inside = f"- {names}: {found[2]}", True
        elif not line.startswith(" "):
            inside = False
        lines.append(line)
    return "\n".join(lines).replace("<", "&lt;")


def _options() -> list[str]:
    source = inspect.getsource(Config)
    parts = []
    for option in fields(Config):
        text = re.search(rf'^    {option.name}: .*?\n    """(.*?)"""', source, re.M | re.S)
        about = " ".join(text[1].split()) if text else ""
        default = (
            "the user's cache folder" if option.name == "cache_dir" else f"`{option.default!r}`"
        )
        parts.append(f"- `{option.name}`, {default}: {about}")
    return ["\n".join(parts)]


def _errors() -> list[str]:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    listed = [f"- `{k.__name__}({k.__bases__[0].__name__})`: {inspect.getdoc(k)}" for k in kinds]
    return ["\n".join(" ".join(line.split()) for line in listed)]


def performance_page() -> str:
    """Return the page of measurements, from the newest results."""
    found = json.loads((RESULTS / "cpu-x86-64.json").read_text())
    peers = ("onnxruntime", "openvino")
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    threads = {model["threads"] for model in found["models"].values() if model.get("ok")}
    counted = " or ".join(map(str, sorted(threads)))
    rows = [
        "| model | Monograph | " + " | ".join(f"x {p}" for p in peers) + " |",
        "|---|---:|---:|---:|",
    ]
    for name, model in found["models"].items():
        if not model.get("ok"):
            continue
        ratios = (model["ratios"].get(p) for p in peers)
        shown = " | ".join("-" if r is None else f"{r:.2f}" for r in ratios)
        rows.append(f"| {name} | {model['times']['monograph']['median'] * 1000:.3f} ms | {shown} |")
    gpu = (RESULTS / "gpu-h200.md").read_text().replace("# GPU benchmarks", "## GPU")
    return f"""# Performance

These figures come from `make bench` and `make bench-gpu`. The runtimes take turns in one
process, on the same inputs and threads. A ratio above 1 means that Monograph is faster.
Measure your own model with `monograph bench model.onnx --against onnxruntime`.

## CPU, {found["date"]}

{found["machine"]}, {counted} threads; {versions}. Median of a run.

{chr(10).join(rows)}

![Times on the CPU beside other runtimes](images/cpu.svg)

{gpu}

![Times on the GPU beside torch](images/gpu.svg)
"""
