"""Writes docs/supported-ops.md: which ONNX ops Monograph takes, from its own tables.

python scripts/supported_ops.py
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import onnx.defs

from monograph.frontend.onnx.functions import has_schema_function
from monograph.frontend.onnx.registry import find_converter, registered
from monograph.ops import OPS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "supported-ops.md"
TITLES = {
    "": "ONNX (ai.onnx)",
    "ai.onnx.ml": "Classical models (ai.onnx.ml)",
    "ai.onnx.preview": "Previews (ai.onnx.preview)",
    "ai.onnx.preview.training": "Training (ai.onnx.preview.training)",
    "com.microsoft": "ONNX Runtime's own (com.microsoft)",
    "monograph": "Monograph's own, in models that it rewrites (monograph)",
}


def newest_schemas() -> dict[str, dict[str, int]]:
    """The newest version of every op that ONNX defines, by domain."""
    found: dict[str, dict[str, int]] = {}
    for schema in onnx.defs.get_all_schemas():
        if not schema.deprecated:
            found.setdefault(schema.domain, {})[schema.name] = schema.since_version
    return found


def page() -> str:
    schemas = newest_schemas()
    for domain, name in registered():
        schemas.setdefault(domain, {}).setdefault(name, 1)
    lines = [
        "# Supported ops",
        "",
        "Written by `make docs` from the converter tables; do not edit. *Converted* ops become",
        "canonical ops directly. *By definition* ops are inlined from the function body that ONNX",
        "itself gives them, as are the functions that a model brings along. Every opset from 7 to",
        f"{onnx.defs.onnx_opset_version()} is served. `monograph inspect` tells the same of one"
        " model.",
    ]
    for domain in sorted(schemas):
        lines += ["", *_section(domain, schemas[domain])]
    lines += ["", *_canonical()]
    return "\n".join(lines) + "\n"


def _section(domain: str, names: dict[str, int]) -> list[str]:
    kinds: dict[str, list[str]] = {"Converted": [], "By definition": [], "Not supported": []}
    newest = onnx.defs.onnx_opset_version() if domain == "" else max(names.values())
    for name in sorted(names):
        if find_converter(domain, name, newest) is not None:
            kinds["Converted"].append(name)
        elif has_schema_function(domain, name, newest):
            kinds["By definition"].append(name)
        else:
            kinds["Not supported"].append(name)
    lines = [f"## {TITLES.get(domain, domain)}"]
    for kind, listed in kinds.items():
        if listed:
            text = f"{kind} ({len(listed)}): {', '.join(listed)}."
            lines += ["", *textwrap.wrap(text, 98, break_on_hyphens=False)]
    return lines


def _canonical() -> list[str]:
    """What they become, by family; a family that no target compiles says so itself."""
    families: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for name, op in OPS.items():
        module = sys.modules[op.__module__]
        only = "reference only" in (module.__doc__ or "").lower()
        families[only].setdefault(module.__name__.rsplit(".", 1)[1], []).append(name)
    compiled, others = (sum(map(len, f.values())) for f in families.values())
    lines = [
        "## What they become",
        "",
        *textwrap.wrap(
            f"{compiled} canonical ops, by the file that defines them, and {others} more that only"
            " the reference runs: texts, sequences, classical models, image files.",
            98,
        ),
    ]
    for only, found in families.items():
        for family, names in sorted(found.items()):
            mark = ", reference only" if only else ""
            text = f"`{family}` ({len(names)}{mark}): {', '.join(sorted(names))}."
            lines += ["", *textwrap.wrap(text, 98, break_on_hyphens=False)]
    return lines


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
