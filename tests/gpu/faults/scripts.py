"""What processes of their own do in fault tests: `python -m tests.gpu.faults.scripts NAME ...`."""

from __future__ import annotations

import gc
import hashlib
import os
import sys

import torch

from monograph.errors import ExecutionError
from tests.gpu.faults.rig import ON_DEVICE, Rig
from tests.gpu.gpu_models import linear


def fork() -> int:
    """A child that was forked after the first run is told so, and breaks nothing for its parent."""
    rig = Rig()
    case, session = rig.case(), rig.load(linear())
    feeds = case.feeds()
    x = torch.ones(2, 33, device=feeds["x"].device)
    case.check()
    session.run({"x": x})
    rig.synchronise()
    arrays = {n: t.cpu().numpy() for n, t in feeds.items()}
    held = None if ON_DEVICE else dict(rig.driver.live)
    child = os.fork()
    if child == 0:
        told = 0
        for run in (
            lambda: case.replay.run(feeds),
            lambda: case.replay.run(arrays),
            lambda: session.run({"x": x}),
        ):
            try:
                run()
            except ExecutionError as e:
                told += "forked" in str(e)
        del case, session, run
        gc.collect()  # frees nothing: that is the parent's
        same = ON_DEVICE or held == dict(rig.driver.live)
        os._exit(0 if told == 3 and same else 10 + told)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    case.check(1)
    session.run({"x": x})
    rig.synchronise()
    return code


def poisoned() -> int:
    """After an error of the device every run says so: no run gives an answer."""
    rig = Rig()
    case, session = rig.case(), rig.load(linear())
    feeds, x = case.feeds(), torch.ones(2, 33, device="cuda")
    case.check()
    session.run({"x": x})
    rig.synchronise()
    arrays = {n: t.cpu().numpy() for n, t in feeds.items()}
    try:
        torch._assert_async(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
    except Exception as e:
        print("the device:", str(e).splitlines()[0])
    else:
        return 3
    for run in (
        lambda: case.replay.run(feeds),
        lambda: case.replay.run(arrays),
        lambda: session.run({"x": x}),
        lambda: rig.case().replay.run(feeds),
    ):
        try:
            print([torch.as_tensor(t).cpu() for t in run()])
        except Exception as e:
            print("raised", type(e).__name__, str(e).splitlines()[0])
        else:
            return 5
    return 0


def digest(cache: str) -> int:
    """The bits of some runs of a session, kernels chosen as a file says."""
    rig = Rig()
    tune = "fast" if ON_DEVICE else "off"
    session = rig.load(linear(), tune=tune, tuning_cache=cache)
    found = hashlib.sha256()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 33, generator=generator).to("cuda" if ON_DEVICE else "cpu")
        for _ in range(2):
            (y,) = session.run({"x": x})
            found.update(y.cpu().numpy().tobytes())
    assert session.stats["captures"] == 1
    print("digest", found.hexdigest(), session.stats["tuned"])
    return 0


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    code = {"fork": fork, "poisoned": poisoned, "digest": digest}[name](*arguments)
    sys.stdout.flush()
    os._exit(code)  # a device that has failed is not waited for
