"""Serving: what it adds to a run, throughput beside other servers, overload, and starts.

    python -m benchmarks.serve overhead
    python -m benchmarks.serve throughput --models magika_v3_3,reachy_fk_int8 --peer-python PYTHON
    python -m benchmarks.serve overload --models face_rfb320 --seconds 60
    python -m benchmarks.serve start

Everything runs on loopback. Servers take turns, and idle ones are stopped meanwhile; peers run in
an environment of its own that has litserve, nvidia-pytriton and onnxruntime (`--peer-python`).
`throughput` needs the program wrk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.serve.process import ServerProcess, serving

import monograph
from benchmarks import serve_peers
from benchmarks.serve_load import binary, binary_call, drive, example, offer, rows_of, wrk
from benchmarks.serve_overhead import overhead
from benchmarks.serve_peers import Peer

SHARED = Path(__file__).parents[2] / "shared" / "models"
SETTLE = 1.0
"""Seconds after a load in which a server ends what clients gave up, before it is stopped."""
MODELS = (
    "reachy_fk_int8", "magika_v3_3", "hf_bert_sdpa", "tv_mobilenet_v3_small", "face_rfb320",
)  # fmt: skip


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    """Count answers a second of 32 clients with one row each, beside LitServe and Triton."""
    return {name: _beside(name, arguments) for name in arguments.models.split(",")}


def _beside(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the servers of one model in turns; the others are stopped meanwhile."""
    folder = SHARED / name
    session = monograph.load(folder / "model.onnx")
    open_ = all(p.shape and isinstance(p.shape[0], str) for p in session.inputs)
    session.close()
    io = rows_of(*example(folder), open_)
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = stack.enter_context(serving(folder))
        call = binary_call(name, io[0])
        _check(serve_peers.ask(own.url, call), io[1], "monograph")
        peers = [Peer("monograph", call, own.process.pid, own.url)]
        stack.callback(own.signal, signal.SIGCONT)
        for made in _rivals(name, io, open_, scratch, arguments):
            stack.callback(made.close)
            _check(serve_peers.ask(made.url, made.call), io[1], made.name)
            made.signal(signal.SIGSTOP)
            peers.append(made)
        peers[0].signal(signal.SIGSTOP)
        for turn in range(arguments.turns):
            for peer in peers:
                peer.signal(signal.SIGCONT)
                wrk(peer.url, peer.call, arguments.warm * (2 if turn == 0 else 1))
                found = wrk(peer.url, peer.call, arguments.seconds)
                rates.setdefault(peer.name, []).append(found.rate)
                # Triton's backend fails if it is stopped amid the requests that wrk gave up.
                time.sleep(SETTLE)
                peer.signal(signal.SIGSTOP)
        peers[0].signal(signal.SIGCONT)
        stats = json.loads(own.get(f"/v2/models/{name}/stats")[1])["model_stats"][0]
    medians = {k: statistics.median(v) for k, v in rates.items()}
    rivals = {k: v for k, v in medians.items() if k != "monograph"}
    best = max(rivals, key=lambda k: rivals[k], default="")
    ratio = medians["monograph"] / rivals[best] if best else None
    rows = stats["inference_count"] / max(stats["execution_count"], 1)
    listed = ", ".join(f"{k} {v:.0f}/s" for k, v in medians.items())
    print(f"{name}: {listed}; {rows:.1f} rows in a run; {ratio} of {best}", flush=True)
    return {
        "rates": rates, "ratio": ratio, "best rival": best, "rows in a run": rows,
        "batching": stats["batching"],
    }  # fmt: skip


def _check(found: list[np.ndarray], wanted: Any, server: str) -> None:
    """End the benchmark if a server gives other numbers than the recorded ones."""
    for x, y in zip(found, wanted.values(), strict=True):
        difference = np.abs(x.astype(np.float64) - y).max() / max(np.abs(y).max(), 1e-6)
        if x.shape != y.shape or difference > 1e-2:
            raise SystemExit(f"{server}: {x.shape} differs by {difference}")


def _rivals(
    name: str, io: Any, open_: bool, scratch: Path, arguments: argparse.Namespace
) -> Iterator[Peer]:
    """Start LitServe and Triton in two ways each: all threads in one worker, or one in each."""
    python, path = arguments.peer_python, SHARED / name / "model.onnx"
    count = os.cpu_count() or 1
    for threads, workers in ((count, 1), (1, count)) if python else ():
        for make in arguments.rivals.split(","):
            if make == "litserve":
                most = 32 if open_ else 1
                yield serve_peers.litserve(python, path, io[0], scratch, threads, most, workers)
            else:
                most = 64 if open_ else 0
                yield serve_peers.triton(python, path, io, scratch, threads, most, workers)


def overload(arguments: argparse.Namespace) -> dict[str, Any]:
    """Offer three times the sustainable rate to a model of some milliseconds."""
    return {name: _overloaded(name, arguments) for name in arguments.models.split(",")}


def _overloaded(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    feeds, _ = rows_of(*example(SHARED / name), True)
    body, headers = binary(feeds)
    options = ("--queue", "64", "--timeout", str(arguments.timeout))
    with serving(SHARED / name, *options) as server:
        url = f"{server.url}/v2/models/{name}/infer"
        asyncio.run(drive(url, body, headers, arguments.warm))
        found, _ = asyncio.run(drive(url, body, headers, 10))
        peak = found[200] / 10
        asyncio.run(offer(url, body, headers, 3 * peak, arguments.warm))
        before = _memory(server)
        found, times = asyncio.run(offer(url, body, headers, 3 * peak, arguments.seconds))
        good = found[200] / arguments.seconds
        times.sort()
        result = {
            "peak": peak, "offered": 3 * peak, "goodput": good, "share": good / peak,
            "statuses": dict(found), "p99": times[int(0.99 * len(times))], "slowest": times[-1],
            "deadline": arguments.timeout, "memory KiB": (before, _memory(server)),
        }  # fmt: skip
    print(name, json.dumps(result), flush=True)
    return result


def start(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time starts of the server until it is ready: with an empty cache, a warm one, a package."""
    return {name: _starts(name, arguments) for name in arguments.models.split(",")}


def _starts(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    path = SHARED / name / "model.onnx"
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / f"{name}.mono"
        env: dict[str, Any] = {"MONOGRAPH_CACHE_DIR": str(Path(folder) / "cache")}
        feeds, _ = example(SHARED / name)
        ports = monograph.load(path).inputs
        sizes = {
            d: n
            for p in ports
            for d, n in zip(p.shape or (), feeds[p.name].shape, strict=True)
            if isinstance(d, str)
        }
        dims = [f"--dim={d}={n}" for d, n in sizes.items()]
        command = [sys.executable, "-m", "monograph", "compile", str(path), "-o", str(package)]
        made = subprocess.run([*command, *dims], env=os.environ | env, capture_output=True)
        if made.returncode:
            raise SystemExit(made.stderr.decode()[-2000:])
        found = {
            "empty cache": [_started(path, env)],
            "warm cache": [_started(path, env) for _ in range(arguments.turns)],
            "package": [_started(package, env) for _ in range(arguments.turns)],
        }
    medians = {
        kind: {k: statistics.median(t[k] for t in times) for k in times[0]}
        for kind, times in found.items()
    }
    print(name, json.dumps(medians), flush=True)
    return medians


def _started(path: Path, env: dict[str, Any]) -> dict[str, float]:
    """Return the times of a server from its start until it is ready, in seconds."""
    begun = time.perf_counter()
    server = ServerProcess(path, **env)
    try:
        server.wait_announced("models are ready")
        wall = time.perf_counter() - begun
        ticks = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        # Its own time, and that of its children.
        cpu = sum(map(int, ticks[11:15])) / os.sysconf("SC_CLK_TCK")
    finally:
        server.stop()
    return {"cpu": cpu, "wall": wall}


def _memory(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def versions(python: str) -> dict[str, str]:
    """Return the date, the machine and the packages that figures depend on."""
    model = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
    found = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{model[0].split(': ')[1]}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "monograph": monograph.__version__,
    }
    for package in ("uvicorn", "uvloop", "httptools", "starlette", "grpcio", "numpy"):
        found[package] = importlib.metadata.version(package)
    if python:
        code = (
            "import importlib.metadata as m\n"
            "for p in ('litserve', 'nvidia-pytriton', 'onnxruntime'): print(p, m.version(p))"
        )
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        found |= dict(line.split() for line in done.stdout.splitlines())
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["overhead", "throughput", "overload", "start"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm", type=float, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=2)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--rivals", default="litserve,triton")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(7)[1]))
    work: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "overhead": overhead, "throughput": throughput, "overload": overload, "start": start,
    }  # fmt: skip
    found = work[arguments.what](arguments)
    if arguments.results:
        known = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
        before = known.get(arguments.what, {})
        known[arguments.what] = {**before, **found, "of": versions(arguments.peer_python)}
        arguments.results.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
