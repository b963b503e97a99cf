"""Processes of fault tests: `python -m tests.gpu.faults.scripts NAME ...`."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import monograph
from monograph.errors import ExecutionError, MonographError
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Case, Rig, equal, grown, waited, warm
from tests.gpu.gpu_models import linear


def fork() -> int:
    """A child that was forked after the first run is told so, and breaks nothing for its parent."""
    rig = Rig()
    warm(rig)
    case, session = rig.case(), rig.load(linear())
    eager = rig.load(linear(), capture="off")
    x = torch.randn(2, 33, generator=torch.Generator().manual_seed(0)).to(PLACE)
    right = [t.clone() for t in eager.run({"x": x})]
    case.check()
    case.check_arrays()
    equal(session.run({"x": x}), right)
    held = rig.held()
    child = os.fork()
    if child == 0:
        code = _forked(rig, case, session, x)
        live = None if ON_DEVICE else dict(rig.driver.live)
        del case, session, eager
        gc.collect()  # frees nothing: that is the parent's
        os._exit(code or (0 if ON_DEVICE or live == dict(rig.driver.live) else 100))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    case.check(1)
    case.check_arrays(1)
    equal(session.run({"x": x}), right)
    assert grown(held, rig.held()) == {}
    _captures(rig, {"x": x}, right)
    assert grown(held, rig.held()) == {}
    return code


def _captures(rig: Rig, feeds: dict[str, torch.Tensor], right: list[torch.Tensor]) -> None:
    """Capture a model that the parent loads after a fork."""
    for kind in ("model", "library"):
        later = rig.case(kind, mode="require")
        for seed in range(2):
            later.check(seed)
            later.check_arrays(seed)
        assert later.stats["captures"] == 2
    another = rig.load(linear(), capture="require")
    for _ in range(2):
        equal(another.run(feeds), right)
    assert another.stats["captures"] == 1


def _forked(rig: Rig, case: Case, session: monograph.Session, x: torch.Tensor) -> int:
    """Return what a child does: how many of its runs were not refused as they should be."""
    feeds = {"x": x}  # of another shape; it can make no tensor on a device
    arrays = {"x": np.zeros((2, 33), np.float32)}
    left = 0
    for one in (case.replay, session):
        for given in (feeds, arrays):
            left += not _refused(one.run, given)
            left += not _refused(one.run_async, given)
    if ON_DEVICE:  # nor is there a device for a model that is loaded here
        try:
            monograph.load(linear(), target="gpu", tune="off").run(arrays)
            left += 1
        except MonographError as e:
            print("a new session:", str(e).splitlines()[0], flush=True)
    return left


def _refused(run: Callable[..., Any], given: dict[str, Any]) -> bool:
    try:
        waited(run, given)
    except ExecutionError as e:
        return "forked" in str(e)
    return False


def poisoned() -> int:
    """After an error of the device every run says so: no run gives an answer."""
    rig = Rig()
    case, session = rig.case(), rig.load(linear())
    eager = rig.load(linear(), capture="off")
    feeds, x = case.feeds(), torch.ones(2, 33, device="cuda")
    array, more = np.ones((2, 33), np.float32), torch.ones(5, 33, device="cuda")
    case.check()
    case.check_arrays()
    for one in (session, eager):
        one.run({"x": x})
        one.run({"x": array})
    arrays = {n: t.cpu().numpy() for n, t in feeds.items()}
    rig.synchronise()
    try:
        torch._assert_async(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
    except Exception as e:
        print("the device:", str(e).splitlines()[0])
    else:
        return 3
    runs = {
        "tensors": lambda: case.replay.run(feeds),
        "arrays": lambda: case.replay.run(arrays),
        "tensors, not waited for": lambda: case.replay.run_async(feeds).result(),
        "arrays, not waited for": lambda: case.replay.run_async(arrays).result(),
        "tensors of a session": lambda: session.run({"x": x}),
        "arrays of a session": lambda: session.run({"x": array}),
        "a new shape": lambda: session.run({"x": more}),
        "tensors, eagerly": lambda: eager.run({"x": x}),
        "arrays, eagerly": lambda: eager.run({"x": array}),
        "a new session": lambda: monograph.load(linear(), target="gpu", tune="off").run({"x": x}),
    }
    wrong = 0
    for name, run in runs.items():
        try:
            found = [torch.as_tensor(t).cpu() for t in run()]
        except MonographError as e:
            print(f"{name}: told:", type(e).__name__, str(e).splitlines()[0])
        except Exception as e:
            wrong += 1
            print(f"{name}: not told by us:", type(e).__name__, str(e).splitlines()[0])
        else:
            wrong += 1
            print(f"{name}: an answer:", found)
    return 5 if wrong else 0


def digest(cache: str) -> int:
    """The bits of some runs of a session, kernels chosen as a file says; and of eager ones."""
    rig = Rig()
    tune = "fast" if ON_DEVICE else "off"
    found = []
    for capture in ("require", "off"):
        session = rig.load(linear(), tune=tune, tuning_cache=cache, capture=capture)
        bits = hashlib.sha256()
        for seed in range(3):
            x = torch.randn(4, 33, generator=torch.Generator().manual_seed(seed)).to(PLACE)
            for given in (x, x, x.cpu().numpy()):
                (y,) = session.run({"x": given})
                bits.update(torch.as_tensor(y).cpu().numpy().tobytes())
        assert session.stats["captures"] == (2 if capture == "require" else 0)
        found.append((bits.hexdigest(), session.stats["tuned"]))
    (captured, tuned), (eager, again) = found
    assert again == 0  # what the first has measured is kept
    print("digest", captured, eager, tuned)
    return 0


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    code = {"fork": fork, "poisoned": poisoned, "digest": digest}[name](*arguments)
    sys.stdout.flush()
    os._exit(code)  # a device that has failed is not waited for
