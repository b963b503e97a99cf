"""Write docs/supported-ops.md, the list of supported ONNX ops, from the converter tables.

python scripts/supported_ops.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import onnx.defs

from monograph.frontend.onnx.functions import has_schema_function
from monograph.frontend.onnx.node import find_converter, registered
from monograph.ops import OPS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "supported-ops.md"
TITLES = {
    "": "ONNX (ai.onnx)",
    "ai.onnx.ml": "Classical models (ai.onnx.ml)",
    "ai.onnx.preview": "Previews (ai.onnx.preview)",
    "ai.onnx.preview.training": "Training (ai.onnx.preview.training)",
    "com.microsoft": "ONNX Runtime (com.microsoft)",
    "monograph": "Monograph, in models that it rewrites (monograph)",
}
HOST_FAMILIES = {"ml", "sequence", "text", "trees"}
"""Files of ops on values that no device holds, and of classical models."""


def newest_schemas() -> dict[str, dict[str, int]]:
    """Return the newest version of every op that ONNX defines, by domain."""
    found: dict[str, dict[str, int]] = {}
    for schema in onnx.defs.get_all_schemas():
        if not schema.deprecated:
            found.setdefault(schema.domain, {})[schema.name] = schema.since_version
    return found


def page() -> str:
    """Return the text of the page."""
    schemas = newest_schemas()
    for domain, name in registered():
        schemas.setdefault(domain, {}).setdefault(name, 1)
    lines = [
        "# Supported ops",
        "",
        "`make docs` writes this page from the converter tables; do not edit it. A converter turns",
        "a *converted* op into canonical ops. An op *by definition* is inlined from the function",
        "body in its ONNX schema; so are the functions of a model. Monograph supports every opset",
        f"from 7 to {onnx.defs.onnx_opset_version()}. `monograph inspect` shows the ops of one"
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
    """Return the canonical ops by family, those that run on the host last."""
    families: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for name, op in OPS.items():
        family = op.__module__.rsplit(".", 1)[1]
        on_host = family in HOST_FAMILIES or bool(op.host_reason)
        families[on_host].setdefault(family, []).append(name)
    compiled, others = (sum(map(len, f.values())) for f in families.values())
    lines = [
        "## Canonical ops",
        "",
        *textwrap.wrap(
            f"There are {compiled} canonical ops, listed by the file that defines them, and"
            f" {others} more that run on the host: texts, sequences, classical models, image files."
            " Of the latter, n-grams of numbers are compiled on both targets, and on a GPU tree"
            " ensembles and coupled probabilities too.",
            98,
        ),
    ]
    for on_host, found in families.items():
        for family, names in sorted(found.items()):
            mark = ", on the host" if on_host else ""
            text = f"`{family}` ({len(names)}{mark}): {', '.join(sorted(names))}."
            lines += ["", *textwrap.wrap(text, 98, break_on_hyphens=False)]
    return lines


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
