"""`monograph verify`: parsing only. `monograph.report` does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import typer

from monograph.cli.common import (
    CHECK_FAILED,
    make_request,
    note,
    pass_options_from,
    reporting,
    show,
)
from monograph.cli.options import (
    Against,
    AnyOrder,
    Archive,
    AsJson,
    Atol,
    Bisect,
    Capture,
    Debug,
    Dims,
    Disabled,
    InputFiles,
    InputRanges,
    Model,
    Only,
    PassSettings,
    PerStep,
    Precision,
    Replay,
    Rtol,
    Seed,
    Specialise,
    Target,
    Tf32,
    Tune,
    Values,
)
from monograph.errors import ConfigError

if TYPE_CHECKING:
    from monograph.pipeline import PassOptions
    from monograph.report.commands.execute import RunRequest


def verify(
    model: Model,
    target: Target = None,
    against: Against = None,
    only: Only = None,
    dim: Dims = None,
    specialise: Specialise = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    seed: Seed = 0,
    rtol: Rtol = None,
    atol: Atol = None,
    any_order: AnyOrder = None,
    bisect: Bisect = False,
    per_step: PerStep = False,
    replay: Replay = False,
    pass_options: PassSettings = None,
    disable: Disabled = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune_: Tune = None,
    capture: Capture = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare a target with the reference, with ONNX Runtime, or with recorded outputs.

    The model runs once on each side. Shapes, dtypes and positions of NaNs must agree, and every
    element must lie within a tolerance that follows from the model's ops and dtypes. The exit code
    is 1 if an output differs, or if the file to compare with does not hold it.

    --bisect runs the passes one by one, with the cost model of --target (cpu or gpu), and compares
    the numbers after each with the reference. It names the wrong pass, the rule and the ONNX
    nodes. If all passes are right and outputs of --target cpu differ, it names the wrong step.

    --per-step runs every step of --target cpu on its own. It compares each step with the reference
    on the same operands, and from the inputs of the model, and names the first wrong step. If all
    steps are right and outputs differ, it names the wrong pass.

    --specialise off checks the code that serves every shape, at the sizes of --dim.

    --replay compares replayed runs with runs without replay, bit for bit: with random inputs, at
    other addresses, in another order and with alternating shapes. On the CPU it compares native
    code that has run before with fresh sessions. The exit code is 1 also if no run was one launch.

    Examples:

    monograph verify model.onnx --against onnxruntime

    monograph verify model.onnx --target cpu --per-step

    monograph verify model.onnx --target gpu --replay
    """
    with reporting(as_json, debug):
        gpu = {"precision": precision, "tf32": tf32, "tune": tune_, "capture": capture}
        request = make_request(
            model,
            target,
            dim,
            input_,
            inputs,
            seed,
            ranges=input_range,
            values=value,
            specialise=specialise,
            **gpu,
        )
        how = _How(against, rtol, atol, any_order or [], only or [])
        if bisect:
            _refuse_with_bisect(how, per_step or replay or None, *gpu.values())
            _bisect(request, pass_options_from(pass_options, disable), how, as_json)
        elif pass_options or disable:
            raise ConfigError("`-p` and `--disable` need `--bisect`", hint="add --bisect")
        elif replay:
            _refuse_with_replay(how, per_step or None)
            _replay(request, as_json)
        elif per_step:
            _per_step(request, how, as_json)
        else:
            _compare(request, how, as_json)


class _How(NamedTuple):
    """The side and tolerances to compare with."""

    against: str | None
    rtol: float | None
    atol: float | None
    any_order: list[str]
    only: list[str]


def _refuse_with_bisect(how: _How, *others: object) -> None:
    given = (how.against, how.only, how.rtol, how.atol, *others)
    if any(x not in (None, "", []) for x in given):
        raise ConfigError(
            "`--bisect` always compares with the reference, within derived tolerances",
            hint="leave out --against, --only, --rtol, --atol, --per-step, --replay, --precision,"
            " --tf32, --tune and --capture",
        )


def _refuse_with_replay(how: _How, per_step: bool | None) -> None:
    if any(x not in (None, "", []) for x in (*how, per_step)):
        raise ConfigError(
            "`--replay` always compares all bits of two runs on the same target",
            hint="leave out --against, --only, --rtol, --atol, --any-order and --per-step",
        )


def _compare(request: RunRequest, how: _How, as_json: bool) -> None:
    from monograph.report.commands.execute import verify_model
    from monograph.report.render import tables

    found = verify_model(request, how.against, note, *how[1:])
    show(
        as_json,
        tables.verification_json(str(request.model), found),
        lambda out: tables.show_verification(out, found),
    )
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _replay(request: RunRequest, as_json: bool) -> None:
    from monograph.report.commands.replay import replay_json, show_replay, verify_replay

    found = verify_replay(request, note)
    show(as_json, replay_json(str(request.model), found), lambda out: show_replay(out, found))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _per_step(request: RunRequest, how: _How, as_json: bool) -> None:
    from monograph.report.commands.per_step import per_step_json, show_per_step, verify_steps

    if how.against not in (None, "reference"):
        raise ConfigError(
            "`--per-step` always compares with the reference",
            given=f"--against {how.against}",
            hint="leave out --against",
        )
    found = verify_steps(request, note, *how[1:])
    show(as_json, per_step_json(str(request.model), found), lambda out: show_per_step(out, found))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _bisect(request: RunRequest, options: PassOptions, how: _How, as_json: bool) -> None:
    from monograph.report.commands.bisection import bisect_model
    from monograph.report.render import fault_tables

    result = bisect_model(request, options, note, how.any_order)
    show(
        as_json,
        fault_tables.bisection_json(str(request.model), result),
        lambda out: fault_tables.show_bisection(out, result),
    )
    if not result.ok:
        raise typer.Exit(CHECK_FAILED)
