"""A device without hardware that keeps code: the machine code of a kernel is its request as JSON.

So a program that was found on disk can be run: by Triton's interpreter, on memory of the host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from monograph.codegen.triton.module.launch import BufferRef, Launch
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary
from tests.gpu.fake_driver import FakeDevice, FakeDriver
from tests.gpu.fake_graphs import FakeGraphs


class KeepingDevice(FakeDevice):
    """A device on the fake driver, as far as sessions can tell with a code cache."""

    keeps_code = True
    name = "a device that keeps code"

    def __init__(self) -> None:
        driver = FakeDriver()
        super().__init__(driver, FakeGraphs(driver, builds=True))
        self.loads = 0
        """Launches of kernels that came from a file."""

    def code(self, wanted: CompileRequest) -> KernelBinary:
        code = json.dumps(asdict(wanted)).encode()
        return KernelBinary(wanted.stem, code, 0, 32 * wanted.warps, wanted.dependent)

    def loaded(
        self,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        arguments: Sequence[BufferRef],
        sizes: tuple[int, ...] = (),
    ) -> Any:
        self.loads += 1
        request = json.loads(binary.code)
        # A launch of known alignment may change its sizes and its grid.
        launch = Launch(request["source"], (), grid, sizes=sizes, aligned=())
        return self.record(launch, arguments, request["stem"])
