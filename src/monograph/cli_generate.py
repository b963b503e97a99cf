"""`monograph generate`, and `monograph bench` of a decoder: parsing only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monograph.cli_common import note, reporting, show
from monograph.cli_options import AsJson, Capture, Debug, Precision, Target, Tf32, Threads, Tune
from monograph.errors import ConfigError

if TYPE_CHECKING:
    from monograph.generate import Generator

Folder = Annotated[
    Path,
    typer.Argument(metavar="DECODER", help="A folder with a decoder, or its ONNX file."),
]
PromptText = Annotated[
    str | None, typer.Option(help="The text to go on from; needs the extra `llm`.")
]
Tokens = Annotated[
    str | None, typer.Option(metavar="ID,ID,...", help="Token ids to go on from, without text.")
]
Count = Annotated[
    int, typer.Option("--max-new-tokens", "-n", min=1, help="How many tokens at most.")
]
Length = Annotated[
    int | None,
    typer.Option(min=2, help="Tokens that a sequence has room for, prompt included."),
]
Temperature = Annotated[
    float, typer.Option(min=0.0, help="0 takes the most likely token; 1 draws as trained.")
]
TopK = Annotated[int, typer.Option(min=0, help="Draw from so many tokens; 0: all.")]
TopP = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Draw from the tokens that have this share.")
]
Penalty = Annotated[float, typer.Option(help="More than 1: what was there before is less likely.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the draws; the same seed, the same tokens.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN", help="Ends the generation: an id, or a token's text; repeat."),
]
OneLaunch = Annotated[
    bool, typer.Option("--one-launch", help="All tokens behind the first in a single launch.")
]


def generate(
    decoder: Folder,
    prompt: PromptText = None,
    tokens: Tokens = None,
    max_new_tokens: Count = 128,
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
    """Goes on from a prompt with a language model, and says how fast that was.

    A decoder is a folder that onnxruntime-genai's builder or optimum wrote. Text is printed as it
    comes, on stdout; figures go to stderr. *of it* is the time that reading weights and cache once
    takes (the floor, measured here) beside the time that a token took.

    Examples:

    monograph generate llama/ --prompt "Once upon a time" -n 64

    monograph generate llama/ --tokens 1,2,3 --temperature 0.8 --top-p 0.9 --seed 7 --json
    """
    with reporting(as_json, debug):
        given = _given(prompt, tokens)
        options: dict[str, Any] = {
            "threads": threads, "precision": precision, "tf32": tf32,
            "tune": tune, "capture": capture,
        }  # fmt: skip
        made = _open(decoder, target, max_length, **options)
        wishes: dict[str, Any] = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
            "repetition_penalty": repetition_penalty, "one_launch": one_launch,
        }  # fmt: skip
        if stop:
            wishes["stop"] = [int(s) if s.isdecimal() else s for s in stop]
        _generate(made, given, max_new_tokens, wishes, as_json)


def _generate(
    made: Generator, given: str | list[int], most: int, wishes: dict[str, Any], as_json: bool
) -> None:
    """Prints what comes as it comes, and figures behind it; with `as_json` all at the end."""
    from monograph.report.decode import decoding_lines, measured

    is_text = isinstance(given, str)
    ids = made.tokenizer.encode(given) if isinstance(given, str) else given
    made.warm_up(len(ids), **wishes)
    pieces = []
    try:
        for piece in made.stream(given, most, **wishes):
            pieces.append(piece)
            if not as_json:
                print(piece, end="" if is_text else " ", flush=True)
    finally:
        if pieces and not as_json:
            print()
    sequence = made.get_sequence(0).tolist()
    length = made.prompt_length
    found = measured(made, length, len(sequence) - length)
    if not as_json:
        for line in decoding_lines(found):
            print(line, file=sys.stderr)
        return
    result = {"tokens": sequence[length:]}
    if is_text:
        result["text"] = "".join(pieces)
    show(True, result | found.as_json(), lambda _: None)


def bench_folder(
    decoder: Path, target: str | None, positions: str, as_json: bool, **options: Any
) -> None:
    """`monograph bench` of a folder: decode steps at positions."""
    from monograph.report.decode import bench_decoder, show_decode_bench

    places = [_id(p, "--positions") for p in positions.split(",") if p.strip()]
    if not places:
        raise ConfigError("--positions are numbers", expected="16,512", given=positions)
    made = _open(decoder, target, None, room=max(places) + 64, **options)
    found = bench_decoder(made, places, 1, note)
    show(as_json, found.as_json(), lambda out: show_decode_bench(out, str(decoder), found))


def _open(
    decoder: Path, target: str | None, length: int | None, room: int = 0, **options: Any
) -> Generator:
    from monograph.generate import Generator
    from monograph.generate.folder import find_decoder
    from monograph.report.progress import compile_bar

    given = {name: value for name, value in options.items() if value is not None}
    if room:
        context = find_decoder(decoder).context
        length = room if context is None else min(room, context)
    return Generator(decoder, target, max_length=length, progress=compile_bar(), **given)


def _given(prompt: str | None, tokens: str | None) -> str | list[int]:
    if (prompt is None) == (tokens is None):
        raise ConfigError(
            "there is one prompt", expected="--prompt or --tokens", given="both" if prompt else None
        )
    if prompt is not None:
        return prompt
    return [_id(t, "--tokens") for t in str(tokens).split(",")]


def _id(text: str, option: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"{option} are numbers", expected="1,2,3", given=text)
    return int(text)
