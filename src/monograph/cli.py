"""The command line: parsing only. What the commands do lives in `monograph.report`.

Exit codes: 0 fine, 1 a check failed, 2 bad usage or a bad model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

import monograph
from monograph.cli_common import (
    BAD_USAGE,
    CHECK_FAILED,
    make_request,
    note,
    pass_options_from,
    print_failure,
    reporting,
    show,
)
from monograph.cli_compile import compile_
from monograph.cli_options import (
    After,
    Against,
    AnyOrder,
    Archive,
    AsJson,
    Atol,
    Bisect,
    CostModel,
    Debug,
    Dims,
    Disabled,
    InputFiles,
    Model,
    Only,
    PassSettings,
    PerStep,
    Precision,
    Rtol,
    RuleName,
    Runnable,
    Seed,
    Target,
    Tf32,
    Threads,
    Tune,
)
from monograph.cli_profile import profile
from monograph.cli_tune import tune
from monograph.errors import ConfigError

# Every other module takes numpy and onnx with it, a second that --help and --version need not wait
# for: commands import what they use.
if TYPE_CHECKING:
    from monograph.pipeline import PassOptions
    from monograph.report.execute import Request

# What typer calls its base class of usage errors depends on its version.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


class _Group(TyperGroup):
    """Commands whose usage errors are JSON too where that is asked for."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if "--json" not in given or not standalone_mode:
            return super().main(args, standalone_mode=standalone_mode, **extra)
        try:
            code = super().main(given, standalone_mode=False, **extra)
        except _UsageError as e:
            print_failure(True, e.format_message())  # type: ignore[attr-defined]
            sys.exit(BAD_USAGE)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=_Group,
    name="monograph",
    help="Runs ONNX models, shows what is in them, and checks that the answers are right.",
    epilog="Start with:  monograph inspect model.onnx",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"monograph {monograph.__version__}")
        raise typer.Exit


@app.command()
def inspect(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Shows what is in a model and whether Monograph can run it.

    A model with unsupported ops is shown too: which ops, how often, where, and what to do.

    Example:  monograph inspect model.onnx --json
    """
    with reporting(as_json, debug):
        from monograph.report import tables
        from monograph.report.inspect import inspect_model

        found = inspect_model(model)
        show(
            as_json,
            tables.inspection_json(str(model), found),
            lambda out: tables.show_inspection(out, str(model), found),
        )
        if found.problem is not None and not found.missing:
            raise typer.Exit(BAD_USAGE)


@app.command()
def run(
    model: Runnable,
    target: Target = None,
    dim: Dims = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Save inputs and outputs as in:NAME, out:NAME."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Run this often; report the times.")] = 1,
    threads: Threads = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune_: Tune = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Runs a model on given inputs, or on random ones, and summarises the outputs.

    Random floats are normal with variance 1, random integers are 0 or 1. Dimensions that nothing
    fixes are 1.

    Example:  monograph run model.onnx --dim batch=4 --input images=photo.npy --output out.npz
    """
    with reporting(as_json, debug):
        from monograph.report import tables
        from monograph.report.execute import run_model, save_archive

        if output is not None and output.suffix != ".npz":
            raise ConfigError(
                "--output is an .npz file", given=output, hint=f"name it {output}.npz"
            )
        options = {"threads": threads, "precision": precision, "tf32": tf32, "tune": tune_}
        request = make_request(model, target, dim, input_, inputs, seed, **options)
        result = run_model(request, note, repeat)
        if output is not None:
            save_archive(output, result)
        show(
            as_json,
            tables.run_json(str(model), result),
            lambda out: tables.show_run(out, result),
        )


@app.command()
def verify(
    model: Model,
    target: Target = None,
    against: Against = None,
    only: Only = None,
    dim: Dims = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    seed: Seed = 0,
    rtol: Rtol = None,
    atol: Atol = None,
    any_order: AnyOrder = None,
    bisect: Bisect = False,
    per_step: PerStep = False,
    pass_options: PassSettings = None,
    disable: Disabled = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune_: Tune = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compares a target with the reference, with ONNX Runtime, or with recorded answers.

    The model runs once per side. Shapes, dtypes and the places of NaNs must agree, and every
    element must lie within a tolerance that is derived from the model's own ops and dtypes.
    Exits with 1 when any output differs, or is not in the file it should be compared with.

    With --bisect the graph goes through the passes one by one, with the cost model of --target
    (cpu or gpu), and the reference runs behind each. Of a pass that changes the numbers, the
    rewrite that does is found, with its rule and the ONNX nodes behind it.

    With --per-step every step of --target cpu runs by itself. It is compared with the reference on
    what it really read, and from the model's inputs on; the first wrong step is shown with the
    ONNX nodes behind it.

    Examples:

    monograph verify model.onnx --against onnxruntime

    monograph verify model.onnx --target cpu --per-step
    """
    with reporting(as_json, debug):
        from monograph.report import tables
        from monograph.report.execute import verify_model

        gpu = {"precision": precision, "tf32": tf32, "tune": tune_}
        request = make_request(model, target, dim, input_, inputs, seed, **gpu)
        if bisect:
            _refuse_with_bisect(against, only, rtol, atol, per_step or None, *gpu.values())
            options = pass_options_from(pass_options, disable)
            _bisect(model, request, options, any_order or [], as_json)
            return
        if pass_options or disable:
            raise ConfigError("-p and --disable are for passes", hint="add --bisect")
        if per_step:
            _per_step(model, request, against, (rtol, atol, any_order or (), only or ()), as_json)
            return
        result = verify_model(request, against, note, rtol, atol, any_order or (), only or ())
        show(
            as_json,
            tables.verification_json(str(model), result),
            lambda out: tables.show_verification(out, result),
        )
        if not result.ok:
            raise typer.Exit(CHECK_FAILED)


@app.command()
def explain(
    model: Model,
    rule: RuleName = None,
    after: After = None,
    target: CostModel = None,
    dim: Dims = None,
    inputs: Archive = None,
    pass_options: PassSettings = None,
    disable: Disabled = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Shows what the rewrites make of a model, and why they do not make more of it.

    For every rule: the ONNX nodes where it fired, with types before and after, and its nearest
    misses with the condition that failed and both values. Open dimensions are 1 unless --dim or
    recorded --inputs say otherwise, because rules that need sizes run when those are bound.

    Examples:

    monograph explain model.onnx --rule compose_pointwise

    monograph explain model.onnx --after simplify > after.txt

    monograph explain model.onnx -p fold_constants{budget=0} --disable batch_towers --json
    """
    with reporting(as_json, debug):
        from monograph.ir import print_graph
        from monograph.report import explain_tables
        from monograph.report.explain import check_names, explain_model

        request = make_request(model, target, dim, None, inputs, 0)
        options = pass_options_from(pass_options, disable)
        check_names(options, rule, after)
        found = explain_model(request, options, note)
        if after is not None:
            text = print_graph(found.graph_after(after), stable=True)
            print(json.dumps({"ok": True, "after": after, "graph": text}) if as_json else text)
        elif rule is not None:
            records = found.rules_of(rule)
            show(
                as_json,
                explain_tables.rules_json(rule, records),
                lambda out: explain_tables.show_rules(out, records),
            )
        else:
            show(
                as_json,
                explain_tables.explanation_json(str(model), found),
                lambda out: explain_tables.show_explanation(out, str(model), found),
            )


@app.command()
def bench(
    model: Runnable,
    target: Target = None,
    against: Annotated[
        str,
        typer.Option(metavar="PEER,PEER", help="Time these beside it: onnxruntime, openvino."),
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 5.0,
    threads: Threads = None,
    dim: Dims = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    seed: Seed = 0,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune_: Tune = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Times a model, with peers in the same window on the same threads and inputs.

    Contenders run in turn, so that noise of the machine hits all alike: trust the ratios more
    than the times.

    Example:  monograph bench model.onnx --against onnxruntime,openvino --threads 2
    """
    with reporting(as_json, debug):
        from monograph.report.bench import bench_model, show_bench

        gpu = {"precision": precision, "tf32": tf32, "tune": tune_}
        request = make_request(model, target, dim, input_, inputs, seed, **gpu)
        peers = [p.strip() for p in against.split(",") if p.strip()]
        found = bench_model(request, note, against=peers, seconds=seconds, threads=threads)
        show(as_json, found.as_json(), lambda out: show_bench(out, str(model), found))


app.command()(profile)
app.command("compile")(compile_)
app.command()(tune)


def main() -> None:
    """The `monograph` command."""
    app()


def _refuse_with_bisect(*others: object) -> None:
    if any(given not in (None, "", []) for given in others):
        raise ConfigError(
            "--bisect compares passes with the reference, within derived tolerances",
            hint="leave out --against, --only, --rtol, --atol, --per-step, --precision, --tf32 and"
            " --tune",
        )


def _per_step(
    model: Path, request: Request, against: str | None, options: tuple[Any, ...], as_json: bool
) -> None:
    from monograph.report.per_step import per_step_json, show_per_step, verify_steps

    if against not in (None, "reference"):
        raise ConfigError(
            "--per-step compares with the reference: nothing else has the same steps",
            given=f"--against {against}",
            hint="leave out --against",
        )
    found = verify_steps(request, note, *options)
    show(as_json, per_step_json(str(model), found), lambda out: show_per_step(out, found))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _bisect(
    model: Path, request: Request, options: PassOptions, any_order: list[str], as_json: bool
) -> None:
    from monograph.report import explain_tables
    from monograph.report.explain import bisect_model

    result = bisect_model(request, options, note, any_order)
    show(
        as_json,
        explain_tables.bisection_json(str(model), result),
        lambda out: explain_tables.show_bisection(out, result),
    )
    if result.fault is not None:
        raise typer.Exit(CHECK_FAILED)


if __name__ == "__main__":
    main()
