"""The device half of an overlapped upload: a PTX kernel that waits for the host's flags."""

from __future__ import annotations

from monograph.ir import DType
from monograph.ir.dtype import f16
from monograph.runtime.gpu.host_io.overlapped_upload import EACH, GRAIN, LINE, SECONDS, THREADS

_ALLOW_DEPENDENTS = "\n  griddepcontrol.launch_dependents;"


def upload_kernel_name(narrowed: DType | None = None) -> str:
    """Return the kernel's name."""
    return "take" if narrowed is None else f"take_{narrowed}"


def upload_kernel_text(overlaps: bool, narrowed: DType | None = None) -> bytes:
    """Return a kernel that copies `n` bytes, a multiple of 16; each block waits for its own.

    overlaps: dependent launches may begin meanwhile (from sm_90 on). narrowed: the 16-bit type of
    the inputs that become the first `m` bytes, a multiple of 16 and at most `n`. They lie at half
    of their offsets, are widened to f32, and have blocks of their own.
    """
    last = "" if narrowed is None else ", .param .u64 p_m"
    halves = "" if narrowed is None else _halves(narrowed)
    target, lets = ("sm_90", _ALLOW_DEPENDENTS) if overlaps else ("sm_80", "")
    return f"""
.version 7.8
.target {target}
.address_size 64
.visible .entry {upload_kernel_name(narrowed)}(
  .param .u64 p_to, .param .u64 p_source, .param .u64 p_control, .param .u64 p_n{last})
.maxntid {THREADS}, 1, 1
{{
  .reg .pred %other, %here, %soon, %q<{EACH}>;
  .reg .b16 %low, %high;
  .reg .b32 %thread, %block, %said, %a<{EACH}>, %b<{EACH}>, %c<{EACH}>, %d<{EACH}>;
  .reg .b64 %to, %source, %control, %line, %n, %m, %o, %began, %now;
  .reg .b64 %o<{EACH}>, %s<{EACH}>, %t<{EACH}>;
  ld.param.u64 %to, [p_to];
  ld.param.u64 %source, [p_source];
  ld.param.u64 %control, [p_control];
  ld.param.u64 %n, [p_n];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %source, %source;
  cvta.to.global.u64 %control, %control;
  mov.u32 %thread, %tid.x;{lets}
  mov.u32 %block, %ctaid.x;
  setp.ne.u32 %other, %thread, 0;
  @%other bra READY;
  mul.wide.u32 %line, %block, {LINE};
  add.u64 %line, %control, %line;
  add.u64 %line, %line, {LINE};
  mov.u64 %began, %globaltimer;
WAIT:
  ld.acquire.sys.global.u32 %said, [%line];
  setp.ne.u32 %here, %said, 0;
  @%here bra CLEAR;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %began;
  setp.lt.u64 %soon, %now, {SECONDS * 10**9};
  @%soon bra WAIT;
  mov.u32 %said, 1;
  st.volatile.global.u32 [%control], %said;
CLEAR:
  mov.u32 %said, 0;
  st.volatile.global.u32 [%line], %said;
READY:
  bar.sync 0;
  mul.wide.u32 %o, %block, {GRAIN};
  mul.wide.u32 %now, %thread, 16;{halves}
  add.u64 %o, %o, %now;{_words(_LOADED)}{_words(_STORED)}
  ret;
}}
\0""".encode()


def _words(text: str) -> str:
    """Repeat a text for each of a thread's words. All loads come first, so that they overlap."""
    return "".join(text.format(number, at=number * THREADS * 16) for number in range(EACH))


_LOADED = """
  add.u64 %o{0}, %o, {at};
  setp.lt.u64 %q{0}, %o{0}, %n;
  add.u64 %s{0}, %source, %o{0};
  @%q{0} ld.global.v4.u32 {{%a{0}, %b{0}, %c{0}, %d{0}}}, [%s{0}];"""
_STORED = """
  add.u64 %t{0}, %to, %o{0};
  @%q{0} st.global.v4.u32 [%t{0}], {{%a{0}, %b{0}, %c{0}, %d{0}}};"""


def _halves(narrowed: DType) -> str:
    """Return the code of blocks that widen 16-bit numbers; later blocks are told where they begin.

    A block with words of both kinds would need branches, and ptxas would then make a thread wait
    for one load before the next.
    """
    widened = _FROM_F16 if narrowed == f16 else _FROM_BF16
    return f"""
  ld.param.u64 %m, [p_m];
  setp.ge.u64 %other, %o, %m;
  @%other bra WHOLE;
  add.u64 %o, %o, %now;{_words(_LOADED_HALVES)}{_words(widened + _STORED)}
  ret;
WHOLE:
  add.u64 %line, %m, {GRAIN - 1};
  and.b64 %line, %line, {-GRAIN};
  sub.u64 %o, %o, %line;
  add.u64 %o, %o, %m;"""


_LOADED_HALVES = """
  add.u64 %o{0}, %o, {at};
  setp.lt.u64 %q{0}, %o{0}, %m;
  shr.u64 %s{0}, %o{0}, 1;
  add.u64 %s{0}, %source, %s{0};
  @%q{0} ld.global.v2.u32 {{%a{0}, %c{0}}}, [%s{0}];"""
_FROM_F16 = """
  mov.b32 {{%low, %high}}, %a{0};
  cvt.f32.f16 %a{0}, %low;
  cvt.f32.f16 %b{0}, %high;
  mov.b32 {{%low, %high}}, %c{0};
  cvt.f32.f16 %c{0}, %low;
  cvt.f32.f16 %d{0}, %high;"""
_FROM_BF16 = """
  and.b32 %b{0}, %a{0}, 0xFFFF0000;
  shl.b32 %a{0}, %a{0}, 16;
  and.b32 %d{0}, %c{0}, 0xFFFF0000;
  shl.b32 %c{0}, %c{0}, 16;"""
"""Unpacks four numbers from two words; the first of each is in the lower half."""
