"""The hook of `mkdocs.yml`: pages of the site that are made from code and from measurements.

`reference.md` comes from signatures and docstrings, `performance.md` from `benchmarks/results`.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from scripts.diagram import with_drawings

from monograph import Engine, Generator, Session, errors, load
from monograph.config import Config
from monograph.generate import Completion, QueueFullError, TokenEvent, TokenStream
from monograph.runtime.pending import Pending

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TORCH = ROOT / "src" / "monograph" / "compat" / "torch" / "model.py"
"""The file of `from_torch`, which only an environment with torch can import."""
ENGINE_SIDE = ("add_event", "fail")
"""Members of a `TokenStream` that its engine calls."""
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
    for kind in (Session, Pending, Generator, Engine, TokenStream):
        parts += [f"## {kind.__name__}", _prose(inspect.getdoc(kind) or ""), *_members(kind)]
    for kind in (TokenEvent, Completion):
        parts += [f"## {kind.__name__}", _prose(inspect.getdoc(kind) or ""), *_fields(kind)]
    parts += _torch_members()
    parts += ["## Config", _prose(inspect.getdoc(Config) or ""), *_fields(Config)]
    parts += ["## Errors", "[Errors](errors.md) says when each is raised.", *_errors()]
    return "\n\n".join(parts) + "\n"


def _function(name: str, member: Any) -> list[str]:
    try:
        signature = str(inspect.signature(member)).replace("monograph.", "")
    except (TypeError, ValueError):  # a member of a C type
        signature = "(...)"
    # Parameters of the type Never are for other APIs' calls, which get an error.
    signature = re.sub(r", \*\*\w+: 'Never'", "", signature)
    signature = re.sub(r", \*\w+: 'Never'(?=\))", "", signature)
    signature = re.sub(r"\*\w+: 'Never'", "*", signature)
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"\(self(, )?", "(", signature))
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
        if (
            name.startswith("_")
            or name in ENGINE_SIDE
            or not inspect.isfunction(inspect.unwrap(code))
        ):
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


def _fields(kind: type[Any]) -> list[str]:
    """Return the fields of a dataclass with their defaults and the texts below them."""
    source = inspect.getsource(kind)
    parts = []
    for field in fields(kind):
        text = re.search(rf'^    {field.name}: [^\n]*\n    """(.*?)"""', source, re.M | re.S)
        default = f", `{field.default!r}`"
        if field.name == "cache_dir":
            default = ", the user's cache folder"
        elif field.default is MISSING:
            default = ""
        about = f": {' '.join(text[1].split())}" if text else f": `{field.type}`"
        parts.append(f"- `{field.name}`{default}{about}")
    return ["\n".join(parts)]


def _torch_members() -> list[str]:
    """Return `from_torch` and `TorchModel`, read from their file."""
    tree = ast.parse(TORCH.read_text())
    named = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    function, kind = named["from_torch"], named["TorchModel"]
    assert isinstance(function, ast.FunctionDef)
    returned = ast.unparse(function.returns) if function.returns else "None"
    parameters = re.sub(r"(?<=[\w\]])=", " = ", ast.unparse(function.args))
    call = f"monograph.from_torch({parameters}) -> {returned}"
    parts = ["## monograph.from_torch", f"```text\n{_broken(call)}\n```"]
    parts += [_prose(ast.get_docstring(function) or "")]
    parts += ["## TorchModel", _prose(ast.get_docstring(kind) or "")]
    for member in kind.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            parts.append(f"### TorchModel.{member.name}")
            parts.append(_prose(ast.get_docstring(member) or ""))
    return parts


def _errors() -> list[str]:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    kinds.append(QueueFullError)
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
    drop_in = _drop_in()
    gpu = (RESULTS / "gpu-h200.md").read_text().replace("# GPU benchmarks", "## GPU")
    return f"""# Performance

These figures come from `make bench` and `make bench-gpu`. The runtimes take turns in one
process, on the same inputs and threads. A ratio above 1 means that Monograph is faster.
Measure your own model with `monograph bench model.onnx --against onnxruntime`.

## CPU, {found["date"]}

{found["machine"]}, {counted} threads; {versions}. Median of a run.

{chr(10).join(rows)}

![Times on the CPU beside other runtimes](images/cpu.svg)

{drop_in}

{gpu}

![Times on the GPU beside torch](images/gpu.svg)
"""


def _drop_in() -> str:
    """Return the section on packages written for onnxruntime, from `make dropin`."""
    found = json.loads((RESULTS / "dropin-x86-64.json").read_text())
    rows = ["| package | onnxruntime | Monograph | x onnxruntime |", "|---|---:|---:|---:|"]
    speeds = []
    for name, row in found["packages"].items():
        speeds.append(row["onnxruntime"] / row["monograph"])
        times = " | ".join(f"{row[side] * 1000:.2f} ms" for side in ("onnxruntime", "monograph"))
        rows.append(f"| {name} | {times} | {speeds[-1]:.2f} |")
    dates = sorted({row["date"] for row in found["packages"].values()})
    return f"""## Packages written for ONNX Runtime, {dates[-1]}

`make dropin` runs programs that use these packages with onnxruntime and, unmodified, with
[Monograph in its place](migration.md). Times are of the session's runs in one call of the program,
the shortest of some seconds; {", ".join(found["versions"])}. Geometric mean
{math.exp(sum(map(math.log, speeds)) / len(speeds)):.2f}.

{chr(10).join(rows)}"""
