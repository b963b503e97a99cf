"""A device that has failed, and fails whatever is asked of it: every run says so, in our words."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monograph.errors import ExecutionError
from monograph.runtime.gpu.driver.graphs import GraphError
from monograph.runtime.gpu.host_io import pinned_staging
from monograph.runtime.gpu.memory import told_of_failure
from tests.gpu.faults.rig import KINDS, ON_DEVICE, PLACE, Rig, equal, fault, waited
from tests.gpu.gpu_models import linear

REASON = "CUDA error: device-side assert triggered"
WORK = ("copy_", "_to_copy", "clone", "zeros", "_local_scalar_dense")
"""Operations of torch that launch something, or wait for it: views and free memory do not."""
pytestmark = pytest.mark.skipif(
    ON_DEVICE, reason="a real one is for a process of its own: see test_processes"
)


class Failing(TorchDispatchMode):
    """Work that torch does on the device fails as it would: by an error of torch's."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function._schema.name.partition("::")[2] in WORK:
            raise torch.AcceleratorError(REASON)
        return function(*arguments, **(options or {}))


@contextmanager
def failed(rig: Rig) -> Iterator[None]:
    """Nothing inside reaches the device; nothing may have run there behind our back."""

    def refuse() -> None:
        raise ExecutionError(f"the driver refused a call: {REASON}")

    ran = len(rig.driver.ran)
    rig.graphs.die(GraphError(f"the driver refused a call: {REASON}"))
    rig.driver.hooks["launch"] = refuse
    try:
        with Failing():
            yield
    finally:
        rig.driver.hooks.clear()
        rig.graphs.well()
    assert len(rig.driver.ran) == ran


def forget_lost() -> None:
    """Slabs that may still be in use are kept: of such a device nobody hears that it is done."""
    gc.collect()
    pinned_staging._DEFERRED.clear()


def told(run: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """A run that was started, or cannot be: whoever asks for its outputs hears what happened."""
    with pytest.raises(ExecutionError, match="CUDA error"):
        waited(run, *arguments, **options)


@pytest.mark.parametrize("known", [True, False], ids=["captured", "not yet"])
@pytest.mark.parametrize("kind", KINDS)
@fault
def test_models(rig: Rig, kind: str, known: bool) -> None:
    """Once the device works again (a real one will not) everything is as it was."""
    case = rig.case(kind)
    if known:
        case.check()
        case.check_arrays()
    feeds = case.feeds(1)
    arrays = {n: t.numpy() for n, t in feeds.items()}
    with failed(rig):
        for given in (feeds, arrays):
            told(case.replay.run, given)
            told(case.replay.run_async, given)
            told(case.replay.run_async, given, stream=40)
    for seed in range(2, 5):
        case.check(seed)
        case.check_arrays(seed)
    del case
    forget_lost()


@pytest.mark.parametrize("capture", ["auto", "require", "off"])
@fault
def test_sessions(rig: Rig, capture: str) -> None:
    session, eager = rig.load(linear(), capture=capture), rig.load(linear(), capture="off")
    x = torch.randn(2, 33, generator=torch.Generator().manual_seed(0)).to(PLACE)
    right = eager.run({"x": x})
    runs = [{"x": x}, {"x": x.numpy()}, {"x": torch.cat([x, x])}, {"x": np.ones((5, 33), "f4")}]
    for known in (False, True):
        with failed(rig):
            for given in runs:
                told(session.run, given)
                told(session.run_async, given)
        if not known:
            for given in runs[:2]:
                found = session.run(given)
                equal([torch.as_tensor(y) for y in found], right)
    equal(session.run({"x": x}), right)
    del session
    forget_lost()


@pytest.mark.parametrize(
    ("said", "message", "given"),
    [
        (f"{REASON}\nSearch for it\nin the manual", "the device has failed", REASON),
        ("", "the device has failed", ""),
        ("not permitted when capturing\n", "needs memory", "not permitted when capturing"),
    ],
)
def test_what_torch_says_of_a_failure_is_told_by_its_first_line(
    said: str, message: str, given: str
) -> None:
    with pytest.raises(ExecutionError, match=message) as caught, told_of_failure():
        raise torch.AcceleratorError(said)
    assert caught.value.given == given
    assert isinstance(caught.value.__cause__, torch.AcceleratorError)
    with pytest.raises(torch.OutOfMemoryError), told_of_failure():
        raise torch.OutOfMemoryError("no memory while capturing")
