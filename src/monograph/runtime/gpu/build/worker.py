"""A process that compiles kernels: a JSON object a line, in and out.

python -m monograph.runtime.gpu.build.worker
"""

from __future__ import annotations

import base64
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from monograph.codegen.triton.module.kernel import Arch
from monograph.errors import CodegenError
from monograph.runtime.gpu.build.build import KernelBinary, CompileRequest, build


def decode_request(one: CompileRequest, arch: Arch) -> str:
    """The line that asks for a kernel."""
    return json.dumps({"request": asdict(one), "arch": asdict(arch)})


def encode_reply(line: str) -> KernelBinary | CodegenError:
    """What a line of answer says."""
    answer = json.loads(line)
    if "error" in answer:
        return CodegenError(answer["error"])
    return KernelBinary(**{**answer, "code": base64.b64decode(answer["code"])})


def _answer(line: str) -> dict[str, Any]:
    asked_for = json.loads(line)
    given = asked_for["request"]
    one = CompileRequest(**{**given, "types": tuple(given["types"]), "aligned": tuple(given["aligned"])})
    try:
        binary = build(one, Arch(**asked_for["arch"]))
    except CodegenError as error:
        return {"error": str(error)}
    return {**asdict(binary), "code": base64.b64encode(binary.code).decode()}


def main() -> None:
    # Whatever the compiler prints must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_answer(line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
