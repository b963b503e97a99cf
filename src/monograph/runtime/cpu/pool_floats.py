"""LLVM text for the floating-point mode of the pool's threads and for spin loops."""

from __future__ import annotations

from monograph.codegen.llvm.module.features import Features


def relax_text(features: Features) -> str:
    if not features.relax:
        return "define internal void @relax() nounwind {\n  ret void\n}\n"
    return f"""
declare void @{features.relax}()
define internal void @relax() nounwind {{
  call void @{features.relax}()
  ret void
}}
"""


def floats_text(features: Features) -> tuple[str, str]:
    """The type of the floating-point control register, and functions that set and restore it."""
    mode = features.float_mode
    if mode is None:
        return (
            "i32",
            """
define internal i32 @enter_floats() nounwind {
  ret i32 0
}
define internal void @leave_floats(i32 %old) nounwind {
  ret void
}
""",
        )
    kind, read, write = mode.type, mode.read, mode.write
    if mode.in_memory:
        return (
            kind,
            f"""
declare void @{read}(ptr)
declare void @{write}(ptr)
define internal {kind} @enter_floats() nounwind {{
  %place = alloca {kind}
  call void @{read}(ptr %place)
  %old = load {kind}, ptr %place
  store {kind} {mode.value}, ptr %place
  call void @{write}(ptr %place)
  ret {kind} %old
}}
define internal void @leave_floats({kind} %old) nounwind {{
  %place = alloca {kind}
  store {kind} %old, ptr %place
  call void @{write}(ptr %place)
  ret void
}}
""",
        )
    return (
        kind,
        f"""
declare {kind} @{read}()
declare void @{write}({kind})
define internal {kind} @enter_floats() nounwind {{
  %old = call {kind} @{read}()
  call void @{write}({kind} {mode.value})
  ret {kind} %old
}}
define internal void @leave_floats({kind} %old) nounwind {{
  call void @{write}({kind} %old)
  ret void
}}
""",
    )
