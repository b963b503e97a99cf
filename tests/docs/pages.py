"""The documentation pages and their fenced code blocks."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
SERVER = ("starlette", "uvicorn", "httptools", "orjson", "tritonclient", "openai")
"""The packages that a server and its clients on the pages need."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
_FENCE = re.compile(
    r"(?:^ *<!-- (?P<marks>(?:needs|not run|shortened): [^>]+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced code block, and the mark in the comment before it."""

    page: str
    line: int
    language: str
    text: str
    needs: str = ""
    """A key of `NEEDS`: the block runs where this is available."""
    not_run: str = ""
    """The reason why no test runs the block."""
    shortened: str = ""
    """Options that tests add to each command, so that it takes less time."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, language: str) -> list[Block]:
    """Return the fenced blocks of a page in a language, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        if match["language"] != language:
            continue
        named = (mark.partition(": ") for mark in (match["marks"] or "").split("; ") if mark)
        marks = {name.replace(" ", "_"): told for name, _, told in named}
        line = text.count("\n", 0, match.start("text")) + 1
        name = str(page.relative_to(ROOT))
        found.append(Block(name, line, language, dedent(match["text"]), **marks))
    return found


def has_module(name: str) -> bool:
    """Return True if a package is installed."""
    return importlib.util.find_spec(name) is not None


def _module(name: str) -> Callable[[], bool]:
    return lambda: has_module(name)


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


NEEDS: dict[str, Callable[[], bool]] = {
    "gpu": _has_gpu,
    "torch": lambda: _module("torch")() and _module("triton")(),
    "tokenizers": _module("tokenizers"),
    "onnxruntime": _module("onnxruntime"),
    "openvino": lambda: _module("onnxruntime")() and _module("openvino")(),
    "server": lambda: all(map(has_module, SERVER)) and shutil.which("curl") is not None,
    "onnxscript": lambda: _module("torch")() and _module("onnxscript")(),
    "starlette": lambda: _module("starlette")() and _module("httpx")(),
}
"""Each thing that a block may need, and the function that tells whether it is available."""


def is_missing(block: Block) -> bool:
    """Return True where the block needs something that this machine lacks."""
    return bool(block.needs) and not NEEDS[block.needs]()
