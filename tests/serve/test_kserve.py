"""KServe's client, unchanged, over HTTP and gRPC.

It needs older packages than this project: `MONOGRAPH_TEST_KSERVE` names a Python that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.process import ServerProcess

PYTHON = os.environ.get("MONOGRAPH_TEST_KSERVE", sys.executable)
KNOWN = subprocess.run([PYTHON, "-c", "import kserve"], capture_output=True, check=False)
CALLS = Path(__file__).with_name("kserve_calls.py")

if KNOWN.returncode:
    pytest.skip("needs kserve, or MONOGRAPH_TEST_KSERVE with its Python", allow_module_level=True)


def test_all_calls_of_the_client_are_answered(server: ServerProcess) -> None:
    done = subprocess.run(
        [PYTHON, str(CALLS), server.url, server.grpc],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all calls" in done.stdout
