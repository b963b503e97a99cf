"""`monograph generate`, and `monograph bench` of a decoder: parsing only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monograph.cli.common import BAD_USAGE, note, print_failure, print_piece, reporting, show
from monograph.cli.options import AsJson, Capture, Debug, Precision, Target, Tf32, Threads, Tune
from monograph.errors import ConfigError, MonographError

if TYPE_CHECKING:
    from monograph.generate import Generator
    from monograph.report.commands.decode import DecodeBench

_ID = re.compile(r"-?[0-9]+")
MOST = 128
"""The default number of new tokens."""
_WORDS = (
    ("get_sequence has what was generated; ", ""),
    ("make a Generator with more max_length", "raise --max-length"),
    ("give token ids", "give --tokens"),
    ("max_length=", "--max-length "),
    ("max_length", "--max-length"),
    ("max_new_tokens", "--max-new-tokens"),
    ("repetition_penalty", "--repetition-penalty"),
    ("top_k", "--top-k"),
    ("top_p", "--top-p"),
)
"""Python's names in errors, and the options of the command line for them."""

Folder = Annotated[
    Path,
    typer.Argument(metavar="DECODER", help="A folder with a decoder, or its ONNX file."),
]
PromptText = Annotated[str | None, typer.Option(help="The prompt as text; needs the extra `llm`.")]
Tokens = Annotated[str | None, typer.Option(metavar="ID,ID,...", help="The prompt as token ids.")]
Count = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        "-n",
        min=1,
        help="The largest number of new tokens.",
        show_default=f"{MOST}, or what --max-length has room for",
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="The largest length of a sequence in tokens, with the prompt.",
        show_default="the decoder's context, but at most 2048",
    ),
]
Positions = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        help="For a decoder: the numbers of tokens in the cache at which to time steps.",
        show_default="16,512, as far as they fit",
    ),
]
BenchLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        min=2,
        help="For a decoder: the length of the cache in tokens.",
        show_default="what --positions need",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        min=0.0, help="0 takes the most likely token; 1 samples from the model's distribution."
    ),
]
TopK = Annotated[
    int, typer.Option(min=0, help="Sample from the K most likely tokens; 0 means all.")
]
TopP = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, help="Sample from the most likely tokens with this total probability."
    ),
]
Penalty = Annotated[float, typer.Option(help="A value above 1 makes earlier tokens less likely.")]
Seed = Annotated[
    int, typer.Option(min=0, help="The seed of sampling; the same seed gives the same tokens.")
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOKEN", help="A token's id, or a text, that ends the generation; repeatable."
    ),
]
OneLaunch = Annotated[
    bool,
    typer.Option("--one-launch", help="Compute all tokens after the first in a single launch."),
]


def generate(
    decoder: Folder,
    prompt: PromptText = None,
    tokens: Tokens = None,
    max_new_tokens: Count = None,
    max_length: Length = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    stop: Stop = None,
    one_launch: OneLaunch = False,
    target: Target = None,
    threads: Threads = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune: Tune = None,
    capture: Capture = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Generate text with a language model, and show the speed.

    A decoder is a folder that onnxruntime-genai's builder or optimum wrote. The text goes to
    stdout as it is generated; figures go to stderr. The floor is the time to read weights and
    cache once from memory, as measured here.

    Examples:

    monograph generate llama/ --prompt "Once upon a time" -n 64

    monograph generate llama/ --tokens 1,2,3 --temperature 0.8 --top-p 0.9 --seed 7 --json
    """
    with reporting(as_json, debug), _said_as_options():
        given = _given(prompt, tokens)
        options: dict[str, Any] = {
            "threads": threads, "precision": precision, "tf32": tf32,
            "tune": tune, "capture": capture,
        }  # fmt: skip
        made = _open(decoder, target, max_length, **options)
        overrides: dict[str, Any] = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
            "repetition_penalty": repetition_penalty, "one_launch": one_launch,
        }  # fmt: skip
        if stop:
            overrides["stop"] = [int(s) if _ID.fullmatch(s) else s for s in stop]
        _generate(made, given, max_new_tokens, overrides, as_json)


def _generate(
    made: Generator,
    given: str | list[int],
    most: int | None,
    overrides: dict[str, Any],
    as_json: bool,
) -> None:
    """Print tokens as they are generated, then the figures; as JSON, all at the end."""
    from monograph.report.commands.decode import decoding_lines, measured

    is_text = isinstance(given, str)
    ids = made.tokenizer.encode(given) if isinstance(given, str) else given
    made.check(ids, **overrides)  # before anything is compiled
    made.warm_up(len(ids), **overrides)
    limit = most or MOST
    # The default ends where the cache is full; a number that the user gives must fit.
    count = limit if most or limit <= made.max_length - len(ids) else None
    pieces = []
    try:
        for piece in made.stream(given, count, **overrides):
            pieces.append(piece)
            if not as_json:
                print_piece(piece, "" if is_text else " ")
    except MonographError as e:
        if not as_json or not pieces:
            raise
        _say_as_options(e)
        print_failure(True, str(e), _made(made, pieces, is_text))
        raise typer.Exit(BAD_USAGE) from None
    finally:
        if pieces and not as_json:
            print()
    length = made.prompt_length
    found = measured(made, length, len(made.get_sequence(0)) - length, limit)
    if not as_json:
        for line in decoding_lines(found):
            print(line, file=sys.stderr)
        return
    show(True, _made(made, pieces, is_text) | found.as_json(), lambda _: None)


def _made(made: Generator, pieces: list[Any], is_text: bool) -> dict[str, Any]:
    """Return the generated tokens and text for JSON."""
    tokens = made.get_sequence(0).tolist()[made.prompt_length :]
    return {"tokens": tokens} | ({"text": "".join(pieces)} if is_text else {})


def bench_folder(
    decoder: Path,
    target: str | None,
    positions: str | None,
    max_length: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time decode steps at positions: `monograph bench` of a folder."""
    from monograph.report.commands.decode import show_decode_bench

    found = measure_folder(decoder, target, positions, max_length, **options)
    show(as_json, found.as_json(), lambda out: show_decode_bench(out, str(decoder), found))


def measure_folder(
    decoder: Path,
    target: str | None,
    positions: str | None,
    max_length: int | None,
    **options: Any,
) -> DecodeBench:
    """Return the times of decode steps at positions."""
    from monograph.report.commands.decode import POSITIONS, bench_decoder, usual_positions

    texts = None if positions is None else [p for p in positions.split(",") if p.strip()]
    places = [_id(p, "--positions") for p in texts or ()]
    if texts is not None and not places:
        raise ConfigError(
            "`--positions` must be comma-separated integers", expected="16,512", given=positions
        )
    if min(places, default=0) < 0:
        raise ConfigError("`--positions` must be 0 or more", given=positions)
    with _said_as_options():
        room = max(places or POSITIONS) + 64
        made = _open(decoder, target, max_length, 0 if max_length else room, **options)
        if texts is None:
            places = usual_positions(made.max_length)
            if places != [*POSITIONS]:
                listed = ",".join(map(str, places))
                note(f"--positions {listed}: {made.max_length} tokens have no room for more")
        return bench_decoder(made, places, 1, note)


def refuse_options(of: str, given: dict[str, Any], hint: str) -> None:
    """Refuse options that would change nothing."""
    if useless := [name for name, value in given.items() if value]:
        raise ConfigError(f"`bench` of {of} does not take {', '.join(useless)}", hint=hint)


@contextmanager
def _said_as_options() -> Iterator[None]:
    """Make errors name options of the command line instead of Python's."""
    try:
        yield
    except MonographError as e:
        _say_as_options(e)
        raise


def _say_as_options(e: MonographError) -> None:
    for python, option in _WORDS:
        e.message = e.message.replace(python, option)
        e.hint = None if e.hint is None else e.hint.replace(python, option)


def _open(
    decoder: Path, target: str | None, length: int | None, room: int = 0, **options: Any
) -> Generator:
    from monograph.generate import Generator
    from monograph.generate.discover.folder import find_decoder
    from monograph.generate.rewrite.step import most_positions
    from monograph.report.render.progress import compile_bar

    given = {name: value for name, value in options.items() if value is not None}
    if room:
        settings = find_decoder(decoder)
        context = settings.context or most_positions(settings)
        length = room if context is None else min(room, context)
    return Generator(decoder, target, max_length=length, progress=compile_bar(), **given)


def _given(prompt: str | None, tokens: str | None) -> str | list[int]:
    if (prompt is None) == (tokens is None):
        raise ConfigError(
            "give one prompt",
            expected="--prompt or --tokens",
            given="none" if prompt is None else "both",
        )
    if prompt is not None:
        return prompt
    return [_id(t, "--tokens") for t in str(tokens).split(",")]


def _id(text: str, option: str) -> int:
    if not _ID.fullmatch(text.strip()):
        raise ConfigError(
            f"`{option}` must be comma-separated integers", expected="1,2,3", given=text
        )
    return int(text)
