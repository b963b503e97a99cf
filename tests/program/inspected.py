"""Models for the comparison of what `inspect` shows with what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monograph.report.commands.execute import RunRequest
from monograph.report.commands.launch_regions import Launching, launching_of_model
from monograph.session import load
from tests.report import models

QUANTISED = """
<ir_version: 9, opset_import: ["" : 18]>
quantised (float[4, 8] x) => (float[4, 6] y)
<int8[8, 6] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6,
 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[1] s = {0.1}>
{
    q, scale, zero = DynamicQuantizeLinear(x)
    product = MatMulInteger(q, w, zero)
    numbers = Cast <to = 1> (product)
    factor = Mul(scale, s)
    y = Mul(numbers, factor)
}
"""
LOOP = """
<ir_version: 9, opset_import: ["" : 18]>
looped (int64 trips, bool go, float[4] x) => (float[4] y)
{
    y = Loop (trips, go, x) <
        body = turn (int64 i, bool c, float[4] a) => (bool d, float[4] b)
        { d = Identity(c)
          b = Exp(a) }
    >
}
"""
UNROLLED = """
<ir_version: 9, opset_import: ["" : 18]>
grown (float[2] x) => (float[N] y)
<int64 trips = {3}, bool go = {1}>
{
    y = Loop (trips, go, x) <
        body = turn (int64 i, bool c, float[N] a) => (bool d, float[M] b)
        { d = Identity(c)
          b = Concat <axis = 0> (a, a) }
    >
}
"""
TRANSFORM = """
<ir_version: 9, opset_import: ["" : 20]>
transform (float[1, 16, 1] x) => (float[1, 16, 2] y)
{
    y = DFT(x)
}
"""
CASES = {
    "a layer and a reduction": models.LINEAR,
    "a branch": models.BRANCH,
    "a loop of a count in the data": LOOP,
    "a loop that is unrolled": UNROLLED,
    "random numbers": models.RANDOM,
    "host steps between regions": models.SPLIT,
    "host steps on strings": models.WORDS,
    "a bounded size": models.SIZED,
    "a size that the rest waits for": models.CHOSEN,
    "quantised": QUANTISED,
    "an op that is expanded": TRANSFORM,
}


def both(name: str, target: str, folder: Path) -> tuple[Launching, Any]:
    """Return what `inspect` shows of a model and its executable, which has not run yet.

    Their programs must be the same: steps, buffers, launches and host steps.
    """
    path = models.save(CASES[name], folder)
    request = RunRequest(path, target)
    shown = launching_of_model(request, lambda _: None)
    session = load(path, target, specialise="now")
    feeds = request.inputs(session, lambda _: None).feeds
    executable = session.executable(feeds)
    (program,) = executable.programs
    assert str(shown.program) == str(program)
    assert [str(x) for x in shown.program.launches] == [str(x) for x in program.launches]
    assert [h.name for h in shown.host] == [*executable.host_kinds]
    assert {h.reason for h in shown.host} == {*executable.host_reasons.values()}
    return shown, executable
