"""The `monograph` command: parsing only. `monograph.report` does the work.

Exit codes: 0 success, 1 a check failed, 2 wrong usage or a wrong model.
"""

from __future__ import annotations

import atexit
import gc
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

import monograph
from monograph.cli.bench import bench
from monograph.cli.common import (
    BAD_USAGE,
    make_request,
    note,
    pass_options_from,
    print_failure,
    reporting,
    show,
    with_cache,
    writing,
)
from monograph.cli.compile import compile_, tune
from monograph.cli.demo import demo, doctor
from monograph.cli.diff import diff
from monograph.cli.generate import generate
from monograph.cli.options import (
    After,
    Archive,
    AsJson,
    Capture,
    CostModel,
    Debug,
    Dims,
    Disabled,
    InputFiles,
    InputRanges,
    LaunchedOn,
    Model,
    PassSettings,
    Precision,
    RuleName,
    Runnable,
    Seed,
    Target,
    Tf32,
    Threads,
    Tune,
    Values,
)
from monograph.cli.profile import profile
from monograph.cli.serve import serve
from monograph.cli.verify import verify
from monograph.cli.view import view
from monograph.errors import ConfigError

# Most modules import numpy and onnx, which takes a second. Commands import what they use, so that
# --help and --version are fast.
if TYPE_CHECKING:
    from rich.console import Console

    from monograph.pipeline import PassOptions
    from monograph.report.commands.execute import RunRequest

# The name of typer's base class of usage errors depends on its version.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

FRAMED = 80
"""The least width for help in frames, in columns; frames cut option names below it."""


class _Group(TyperGroup):
    """The group of commands; with --json it prints usage errors as JSON too."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if shutil.get_terminal_size().columns < FRAMED:
            for command in cast("Iterable[Any]", self.commands.values()):
                command.rich_markup_mode = None
        with writing():
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
    help="Run ONNX models, show their content, and check their results.",
    epilog="Start with:  monograph demo,  or  monograph inspect model.onnx",
    no_args_is_help=True,
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
def inspect(
    model: Model,
    target: LaunchedOn = None,
    dim: Dims = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the content of a model, and whether Monograph can run it.

    It lists inputs, outputs, open dimensions, weights and ops. For unsupported ops it lists the
    nodes and says what to do.

    Constant weights that every run decodes or casts again are listed, with their bytes.

    With --target it also shows the launches of a run: regions, kernels, and the ops that split a
    run, with the reason. This compiles nothing and needs no GPU, torch or triton.

    Examples:

    monograph inspect model.onnx --json

    monograph inspect model.onnx --target gpu --dim batch=4
    """
    with reporting(as_json, debug):
        from monograph.report.commands.inspect import inspect_model
        from monograph.report.render import tables

        found = inspect_model(model)
        told = tables.inspection_json(str(model), found)
        if not found.supported or (target is None and not found.codes):
            show(as_json, told, lambda out: tables.show_inspection(out, str(model), found))
        else:
            from monograph.report.commands import launch_regions

            request = make_request(
                model, target, dim, None, inputs, 0, ranges=input_range, values=value
            )
            launched = launch_regions.try_launching(request, note if target else lambda _: None)

            def both(out: Console) -> None:
                tables.show_inspection(out, str(model), found)
                if target is None:
                    launch_regions.show_expanded(out, launch_regions.expanded_in(launched))
                else:
                    launch_regions.show_told(out, launched, target, note)

            more = launch_regions.launching_json(launched)
            if target is None:
                told["expanded_weights"] = more.get("expanded_weights", [])
            show(as_json, told if target is None else told | {"launches": more}, both)
        if found.problem is not None and not found.missing:
            raise typer.Exit(BAD_USAGE)


@app.command()
@with_cache
def run(
    model: Runnable,
    target: Target = None,
    dim: Dims = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Save inputs as in:NAME and outputs as out:NAME."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="The number of runs; shows their times.")] = 1,
    threads: Threads = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune_: Tune = None,
    capture: Capture = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a model on given or random inputs, and summarise the outputs.

    Random floats have a normal distribution with variance 1. The range of random integers follows
    from their use as indices, lengths or masks; without such a use they are 0 or 1. --input-range
    and --value choose other numbers. Open dimensions are 1, or a size that
    the model takes, unless --dim sets them.

    Example:  monograph run model.onnx --dim batch=4 --input images=photo.npy --output out.npz
    """
    with reporting(as_json, debug):
        from monograph.report.commands.execute import check_folder, run_model, save_archive
        from monograph.report.render import tables

        if output is not None and output.suffix != ".npz":
            raise ConfigError(
                "`--output` must be an .npz file", given=output, hint=f"name it {output}.npz"
            )
        check_folder(output)
        gpu = {"precision": precision, "tf32": tf32, "tune": tune_, "capture": capture}
        options = {"threads": threads, **gpu}
        request = make_request(
            model, target, dim, input_, inputs, seed, ranges=input_range, values=value, **options
        )
        result = run_model(request, note, repeat)
        if output is not None:
            save_archive(output, result)
        show(
            as_json,
            tables.run_json(str(model), result),
            lambda out: tables.show_run(out, result),
        )


@app.command()
def explain(
    model: Model,
    rule: RuleName = None,
    after: After = None,
    target: CostModel = None,
    dim: Dims = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    pass_options: PassSettings = None,
    disable: Disabled = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show which rewrite rules fire in a model, and why others do not.

    For every rule it lists the ONNX nodes where the rule fired, with the expressions before and
    after, and the nearest misses with the condition that failed. Rules need known sizes, so open
    dimensions are 1, or a size that the model takes, unless --dim or --inputs sets them.

    Examples:

    monograph explain model.onnx --rule compose_pointwise

    monograph explain model.onnx --after simplify > after.txt

    monograph explain model.onnx -p fold_constants{budget=0} --disable batch_towers --json
    """
    with reporting(as_json, debug):
        request = make_request(
            model, target, dim, None, inputs, 0, ranges=input_range, values=value
        )
        _explain(request, pass_options_from(pass_options, disable), rule, after, as_json)


def _explain(
    request: RunRequest, options: PassOptions, rule: str | None, after: str | None, as_json: bool
) -> None:
    from monograph.ir import print_graph
    from monograph.report.commands.explain import check_names, explain_model
    from monograph.report.render import explain_tables

    check_names(options, rule, after)
    launches = rule is None and after is None
    found = explain_model(request, options, note, launches=launches)
    if after is not None:
        text = print_graph(found.graph_after(after), stable=True)
        show(as_json, {"after": after, "graph": text}, lambda _: print(text))
    elif rule is not None:
        records = found.rules_of(rule)
        show(
            as_json,
            explain_tables.rules_json(rule, records),
            lambda out: explain_tables.show_rules(out, records),
        )
    else:
        path = str(request.model)
        show(
            as_json,
            explain_tables.explanation_json(path, found),
            lambda out: explain_tables.show_explanation(out, path, found),
        )


app.command()(with_cache(bench))
app.command()(with_cache(verify))
app.command()(with_cache(view))
app.command()(with_cache(diff))
app.command()(with_cache(profile))
app.command("compile")(with_cache(compile_))
app.command()(with_cache(tune))
app.command()(with_cache(generate))
app.command()(with_cache(serve))
app.command()(with_cache(demo))
app.command()(with_cache(doctor))


def main() -> None:
    """The `monograph` command."""
    # At its end the interpreter would search all values of a model for garbage.
    atexit.register(gc.freeze)
    app()


if __name__ == "__main__":
    main()
