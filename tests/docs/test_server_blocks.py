"""Blocks that ask a server run beside one: of the command `serve`, or of the tutorial."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.fixtures import write_files
from tests.docs.pages import NEEDS, PAGES, ROOT, Block, blocks

if not NEEDS["server"]():
    pytest.skip("the server needs '.[serve]', its clients and curl", allow_module_level=True)

from tests.serve.models import affine
from tests.serve.process import START, serving

TUTORIAL = ROOT / "docs" / "tutorials" / "serving.md"
ASKING = [b for page in PAGES for b in blocks(page, "sh") if b.needs == "server"]
PAGES_OF_SERVER = {
    f"docs/{name}.md"
    for name in ("serve", "serve-inference", "serve-openai", "tutorials/load-test")
}
OF_COMMAND = [b for b in ASKING if b.page != str(TUTORIAL.relative_to(ROOT))]


def run_block(block: Block, address: str, folder: Path) -> str:
    """Run a block by a shell; answers of servers that are errors are failures."""
    (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", block.text.replace("localhost:8000", address)],
        cwd=folder, env=os.environ | {"PATH": programs, "CURL_HOME": str(folder)},
        capture_output=True, text=True, check=False, timeout=START,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server with the models that the pages name."""
    models = tmp_path_factory.mktemp("models")
    affine(models / "affine" / "model.onnx")
    examples = tmp_path_factory.mktemp("examples")
    write_files(examples)
    shutil.move(examples / "llama", models / "llama")
    with serving(models) as server:
        yield server.address


@pytest.mark.parametrize("block", OF_COMMAND, ids=str)
def test_blocks_that_ask_a_server_run(block: Block, address: str, tmp_path: Path) -> None:
    assert run_block(block, address, tmp_path).strip()


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(START)


def wait_for(port: int) -> None:
    """Wait until a process listens at a port."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nothing listens at {port}")


@pytest.mark.usefixtures("in_folder")
def test_the_service_of_the_tutorial_answers() -> None:
    start, ask = (b for b in ASKING if b not in OF_COMMAND)
    prepare, answer, _ = blocks(TUTORIAL, "python")
    Path("service.py").write_text(prepare.text + answer.text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = start.text.replace("8000", str(port)).split()
    with started([sys.executable, "-m", *command], Path.cwd()):
        wait_for(port)
        run_block(ask, f"localhost:{port}", Path.cwd())
    assert Path("boxes.bin").stat().st_size == 300 * 6 * 4


def test_each_page_of_the_server_has_a_block_that_runs() -> None:
    assert {b.page for b in OF_COMMAND} >= PAGES_OF_SERVER
