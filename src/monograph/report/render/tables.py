"""Inspections, runs and comparisons as tables and as JSON; short texts of nodes and types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape

from monograph.program.dynamic.batch_proof import BatchProof
from monograph.program.program import Step
from monograph.report.commands.execute import RunResult, VerifyResult
from monograph.report.commands.inspect import Described, Inspection
from monograph.report.render.console import Rows, table
from monograph.runtime.numerics.compare import Difference, OutputPath, flatten

SHOWN_OPS = 40


def show_inspection(out: Console, path: str, found: Inspection) -> None:
    opsets = ", ".join(f"{k} {v}" for k, v in found.opsets.items())
    out.print(f"[bold]{escape(path)}[/bold]")
    out.print(
        escape(
            f"IR version {found.ir_version}, opset {opsets or 'none'},"
            f" produced by {found.producer or 'an unnamed program'}"
        )
    )
    out.print(
        f"{found.nodes:,} nodes, {found.functions:,} functions,"
        f" {found.parameters:,} parameters, {bytes_text(found.bytes)}"
    )
    out.print(_ports("inputs", found.inputs))
    out.print(_ports("outputs", found.outputs))
    if found.dimensions:
        rows = table("open dimensions", "name", "where")
        for name, places in found.dimensions.items():
            rows.add_row(escape(name), escape(", ".join(places)))
        out.print(rows)
    if found.weights:
        rows = table("weights", "dtype", "tensors", "elements", "size", right=(1, 2, 3))
        for w in found.weights:
            rows.add_row(w.dtype, f"{w.tensors:,}", f"{w.elements:,}", bytes_text(w.bytes))
        out.print(rows)
    histograms = [_histogram("ONNX ops", found.ops)]
    if found.canonical is not None:
        histograms.append(_histogram("canonical ops", found.canonical))
    out.print(Columns(histograms))
    if found.batching is not None:
        told = "rows are independent" if found.batching.holds else "rows are not independent"
        out.print(escape(f"{told}: {found.batching}"))
    if found.random:
        out.print(escape(f"draws random numbers: {', '.join(found.random)}"))
    if found.host:
        rows = table("on the host", "op", "why")
        for name, why in found.host.items():
            rows.add_row(escape(name), escape(why))
        out.print(rows)
    _show_support(out, found)


def _show_support(out: Console, found: Inspection) -> None:
    if found.supported:
        out.print("[green]Every op is supported.[/green]")
        return
    if found.missing:
        rows = table("unsupported ops", "op", "opset", "nodes", "which", right=(1, 2))
        for m in found.missing:
            name = f"{m.domain or 'ai.onnx'}.{m.name}"
            which = str(m).split(": ", 1)[-1]
            rows.add_row(escape(name), str(m.opset), str(len(m.nodes)), escape(which))
        out.print(rows)
        assert found.problem is not None
        out.print(f"[yellow]What to do:[/yellow] {escape(found.problem.hint or '')}")
    else:
        out.print(f"[red]The model cannot be imported:[/red] {escape(str(found.problem))}")


def show_run(out: Console, result: RunResult) -> None:
    columns = ("name", "dtype", "shape", "min", "mean", "max", "not finite")
    rows = table(f"outputs on {result.target}", *columns, right=(3, 4, 5, 6))
    for row in map(_summary, flatten(result.outputs).items()):
        numbers = [_number(row[k]) for k in ("min", "mean", "max")]
        shape = "none" if row["shape"] is None else str(row["shape"])
        rows.add_row(
            escape(row["name"]), row["dtype"], escape(shape), *numbers, str(row["non_finite"])
        )
    out.print(rows)
    times = result.run_seconds
    text = f"loaded in {seconds_text(result.load_seconds)}, ran in {seconds_text(times[0])}"
    if result.first_run:
        text += f" ({result.first_run}; --repeat N also times runs without it)"
    if len(times) > 1:
        text = (
            f"loaded in {seconds_text(result.load_seconds)}; {len(times)} runs:"
            f" fastest {seconds_text(min(times))}, median {seconds_text(median(times))}"
        )
    out.print(text)


def show_verification(out: Console, result: VerifyResult) -> None:
    columns = ("output", "result", "max abs", "max rel", "allowed", "worst element")
    title = f"{result.target} against {result.against}"
    rows = table(title, *columns, right=(2, 3, 4))
    for d in result.differences:
        verdict = "[green]ok[/green]" if d.ok else f"[red]{escape(d.problem or '')}[/red]"
        if d.warning is not None:
            verdict = f"[yellow]{escape(d.warning)}[/yellow]"
        errors = (_number(d.max_abs), _number(d.max_rel), _allowed(d))
        rows.add_row(escape(d.name), verdict, *errors, escape(worst_text(d)))
    out.print(rows)
    times = "; ".join(_first_run(name, s) for name, s in result.seconds.items())
    failed = sum(not d.ok for d in result.differences)
    count = len(result.differences)
    if failed:
        out.print(f"[red]{failed} of {count} outputs differ[/red] ({escape(times)})")
    else:
        out.print(f"[green]{count} of {count} outputs agree[/green] ({escape(times)})")
    if idle := [d.name for d in result.differences if d.warning is not None]:
        names = escape(", ".join(idle))
        out.print(
            f"[yellow]{len(idle)} of {count} outputs show nothing: {names}[/yellow]"
            " (choose inputs with --dim, --input-range, --value or --inputs)"
        )
    if result.inputs.drawn:
        drawn = "; ".join(f"{name} {words}" for name, words in result.inputs.drawn.items())
        out.print(f"drawn inputs (seed {result.seed}): {escape(drawn)}")
    if result.absent:
        names = escape(", ".join(result.absent))
        out.print(
            f"[red]not compared, because {escape(result.against)} lacks them: {names}[/red]"
            " (--only NAME chooses outputs)"
        )
    if result.left_out:
        out.print(f"not compared, as asked: {escape(', '.join(result.left_out))}")
    for hint in result.hints:
        out.print(f"[yellow]What to do:[/yellow] {escape(hint)}")


def inspection_json(path: str, found: Inspection) -> dict[str, Any]:
    return {
        "model": path,
        "name": found.name,
        "producer": found.producer,
        "ir_version": found.ir_version,
        "opsets": found.opsets,
        "inputs": [_port_json(p) for p in found.inputs],
        "outputs": [_port_json(p) for p in found.outputs],
        "nodes": found.nodes,
        "functions": found.functions,
        "ops": found.ops,
        "canonical_ops": found.canonical,
        "parameters": found.parameters,
        "bytes": found.bytes,
        "weights": [
            {"dtype": w.dtype, "tensors": w.tensors, "elements": w.elements, "bytes": w.bytes}
            for w in found.weights
        ],
        "open_dimensions": found.dimensions,
        "batching": _batching_json(found.batching),
        "random_ops": found.random,
        "host_ops": found.host,
        "supported": found.supported,
        "unsupported": [
            {"domain": m.domain or "ai.onnx", "op": m.name, "opset": m.opset,
             "count": len(m.nodes), "nodes": list(m.nodes)}
            for m in found.missing
        ],
        "problem": None if found.problem is None else str(found.problem),
        "ok": found.supported or bool(found.missing),
    }  # fmt: skip


def run_json(path: str, result: RunResult) -> dict[str, Any]:
    return {
        "model": path,
        "target": result.target,
        "outputs": [_summary(item) for item in flatten(result.outputs).items()],
        "load_seconds": result.load_seconds,
        "run_seconds": result.run_seconds,
        **_inputs_json(result),
    }


def _inputs_json(result: RunResult | VerifyResult) -> dict[str, Any]:
    """Return the seed, the random inputs and the assumed sizes."""
    return {
        "seed": result.seed,
        "random_inputs": result.inputs.random,
        "drawn_inputs": result.inputs.drawn,
        "assumed_dims": result.inputs.assumed,
    }


def verification_json(path: str, result: VerifyResult) -> dict[str, Any]:
    return {
        "model": path,
        "target": result.target,
        "against": result.against,
        "ok": result.ok,
        "outputs": [difference_json(d) for d in result.differences],
        "not_compared": [*result.absent, *result.left_out],
        "random_ops": result.random,
        "seconds": result.seconds,
        "hints": result.hints,
        **_inputs_json(result),
    }


def difference_json(d: Difference) -> dict[str, Any]:
    return {
        "name": d.name,
        "ok": d.ok,
        "problem": d.problem,
        "warning": d.warning,
        "max_abs": d.max_abs,
        "max_rel": d.max_rel,
        "rtol": d.tolerance.rtol,
        "atol": d.tolerance.atol,
        "used": d.used,
        "worst": d.worst,
        "given": d.given,
        "expected": d.expected,
    }


def plain(value: Any) -> Any:
    """Return a value for JSON; "nan", "inf" and "-inf" become text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _ports(title: str, ports: tuple[Described, ...]) -> Rows:
    rows = table(title, "name", "dtype", "shape")
    for port in ports:
        rows.add_row(escape(port.name), escape(port.dtype), escape(port.shape_text))
    return rows


def _port_json(port: Described) -> dict[str, Any]:
    shape = None if port.shape is None else list(port.shape)
    return {"name": port.name, "dtype": port.dtype, "shape": shape}


def _histogram(title: str, counts: dict[str, int]) -> Rows:
    rows = table(None, title, f"{sum(counts.values()):,}", right=(1,))
    for name, count in list(counts.items())[:SHOWN_OPS]:
        rows.add_row(escape(name), f"{count:,}")
    if len(counts) > SHOWN_OPS:
        rows.add_row(f"and {len(counts) - SHOWN_OPS} more kinds", "")
    return rows


def _summary(item: tuple[OutputPath, Any]) -> dict[str, Any]:
    """Return name, dtype, shape and statistics of the finite elements of an output."""
    place, value = item
    row: dict[str, Any] = {"name": str(place), "dtype": "none", "shape": None}
    row |= {"min": None, "mean": None, "max": None, "non_finite": 0}
    if value is None:
        return row
    array = np.asarray(value)
    row |= {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind in "OUSTc":
        return row
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    row["non_finite"] = int(wide.size - finite.size)
    if finite.size:
        row |= {"min": float(finite.min()), "mean": float(finite.mean())}
        row["max"] = float(finite.max())
    return row


def worst_text(d: Difference) -> str:
    if d.worst is None:
        return "-"
    given, expected = (f"{x:.8g}" if isinstance(x, float) else x for x in (d.given, d.expected))
    return f"{given} for {expected} at {[*d.worst]}"


def _allowed(d: Difference) -> str:
    if d.tolerance.rtol == 0 and d.tolerance.atol == 0:
        return "equal"
    if d.tolerance.atol == 0:
        return _number(d.tolerance.rtol)
    return f"{_number(d.tolerance.rtol)} + {_number(d.tolerance.atol)}"


def _number(x: Any) -> str:
    if x is None:
        return "-"
    return f"{x:.4g}" if isinstance(x, (int, float)) and not isinstance(x, bool) else str(x)


def _first_run(side: str, seconds: float) -> str:
    """Return the time of a side; that of a compiled target includes compilation or loading."""
    prepared = side.partition(":")[0] in ("cpu", "gpu")
    return f"{side} {seconds_text(seconds)}{', preparation included' if prepared else ''}"


def count_text(count: int, name: str) -> str:
    """Return a count with its noun: 1 thread, 2 threads."""
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{count} {name if count == 1 else plural}"


def seconds_text(s: float) -> str:
    if s < 1e-6:
        return f"{s * 1e9:.0f} ns"
    if s < 1e-3:
        return f"{s * 1e6:.1f} us"
    return f"{s:.2f} s" if s >= 1 else f"{s * 1000:.1f} ms"


def bytes_text(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


WIDTH = 60
"""The largest width of a list of nodes; a longer name keeps its end."""


def nodes_text(nodes: Sequence[str], width: int = WIDTH) -> str:
    """Return the first nodes and the number of others; names lose the folder that all share."""
    if not nodes:
        return "-"
    short = [nodes[0], *(_without(name, nodes[0]) for name in nodes[1:])]
    shown = [_ending(short[0], width)]
    for name in short[1:]:
        if len(", ".join([*shown, name])) > width:
            break
        shown.append(name)
    left = len(nodes) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _without(name: str, first: str) -> str:
    """Return a name without the folders that it shares with the first one."""
    pieces, other = name.split("/"), first.split("/")
    same = 0
    while same < min(len(pieces), len(other)) - 1 and pieces[same] == other[same]:
        same += 1
    # One shared piece is the empty one before a leading slash.
    return name if same < 2 else "…/" + "/".join(pieces[same:])


def _ending(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[1 - width :]


def made_text(step: Step) -> str:
    """Return the types of a step's results."""
    return ", ".join(str(v.type) for v in step.region.outputs)


def _batching_json(proof: BatchProof | None) -> dict[str, Any] | None:
    if proof is None:
        return None
    return {
        "independent": proof.holds,
        "inputs": dict(proof.inputs),
        "outputs": dict(proof.outputs),
        "node": proof.node,
        "reason": proof.reason,
    }
