"""The architectures that code is generated for: known without torch and triton."""

from __future__ import annotations

from monograph.codegen.triton.module.kernel import Arch

ARCHES = {
    "sm_80": Arch("cuda", "sm_80"),
    "sm_86": Arch("cuda", "sm_86"),
    "sm_89": Arch("cuda", "sm_89"),
    "sm_90": Arch("cuda", "sm_90"),
    "sm_100": Arch("cuda", "sm_100"),
    "sm_120": Arch("cuda", "sm_120"),
    "gfx942": Arch("hip", "gfx942", 64),
    "gfx1100": Arch("hip", "gfx1100"),
    "gfx1151": Arch("hip", "gfx1151"),
    "gfx1201": Arch("hip", "gfx1201"),
}
"""By name."""
