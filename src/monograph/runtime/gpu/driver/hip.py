"""AMD devices: Triton compiles and launches kernels; torch for ROCm has memory and streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from monograph.codegen.triton.module.kernel import Arch, Launch
from monograph.codegen.triton.module.layout import BufferRef
from monograph.errors import ConfigError
from monograph.runtime.gpu.build.build import CompileRequest, KernelBinary
from monograph.runtime.gpu.driver.devices import Launched, Record
from monograph.runtime.gpu.driver.torch_driver import TorchDevice


class HipDevice(TorchDevice):
    """One AMD GPU."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        about = torch.cuda.get_device_properties(index)
        name = str(about.gcnArchName).partition(":")[0]
        self.arch = Arch("hip", name, about.warp_size)
        self.driver = str(torch.version.hip)

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Record:
        return Launched(launch, arguments, stem)

    def loaded(
        self, binary: KernelBinary, grid: tuple[int, int, int], arguments: Sequence[BufferRef]
    ) -> Record:
        raise ConfigError(
            "packages can be loaded on NVIDIA devices only",
            given=self.name,
            hint="load the model itself: its kernels are compiled once and kept by Triton",
        )

    def has(self, wanted: CompileRequest) -> bool:
        """Return True: Triton compiles at the first launch, and caches the code."""
        return True

    def load(self, wanted: CompileRequest, binary: KernelBinary) -> None:
        raise NotImplementedError("Triton loads its kernels itself")
