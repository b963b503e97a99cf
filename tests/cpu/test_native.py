"""LLVM text to object code to functions in memory."""

from __future__ import annotations

import ctypes
import gc
import math
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.features import TABLE, Features, choose_features, host_features
from monograph.config import INSTRUCTION_SETS
from monograph.errors import CodegenError, ConfigError
from monograph.runtime.cpu import native
from monograph.runtime.cpu.native import NativeCode, assembly, compile_module, compile_modules
from monograph.runtime.cpu.pool_code import pool_text
from tests.cpu.launching import function

SINE = """
declare double @sin(double)
define double @sine(double %x) nounwind {
  %y = call double @sin(double %x)
  ret double %y
}
"""
TWICE = """
declare double @sine(double)
define double @twice(double %x) nounwind {
  %y = call double @sine(double %x)
  %z = fadd double %y, %y
  ret double %z
}
"""


def constant(number: int) -> str:
    return f"define i64 @number() nounwind {{\n  ret i64 {number}\n}}\n"


def usable() -> list[Features]:
    """The entries of the table that this host can run."""
    found = []
    for name in TABLE:
        try:
            found.append(choose_features(name))
        except ConfigError:
            continue
    return found


def test_a_module_calls_the_maths_library() -> None:
    code = NativeCode([compile_module(SINE, host_features())], ["sine"])
    sine = function(code.address("sine"), ctypes.c_double, ctypes.c_double)
    assert sine(1.0) == math.sin(1.0)


@pytest.mark.parametrize("features", usable(), ids=lambda f: f.name)
def test_vectors_of_every_instruction_set(features: Features) -> None:
    lanes = features.lanes(32)
    b = Builder("scale", [("x", "ptr"), ("y", "ptr")])
    kind = f"<{lanes} x float>"
    loaded = b.load(kind, b.arguments["x"], 4)
    scaled = b.intrinsic("fma", loaded, loaded, b.number(1.0, "float", lanes))
    b.store(scaled, b.arguments["y"], 4)
    b.ret()
    text = "\n".join([*sorted(b.declarations), b.text()])
    code = NativeCode([compile_module(text, features)], ["scale"])
    x = (ctypes.c_float * lanes)(*range(lanes))
    y = (ctypes.c_float * lanes)()
    function(code.address("scale"), None, ctypes.c_void_p, ctypes.c_void_p)(x, y)
    assert list(y) == [i * i + 1.0 for i in range(lanes)]


def test_modules_call_each_other_in_any_order() -> None:
    objects = compile_modules([TWICE, SINE], host_features(), jobs=2)
    code = NativeCode(objects, ["twice"])
    twice = function(code.address("twice"), ctypes.c_double, ctypes.c_double)
    assert twice(0.5) == 2 * math.sin(0.5)


def test_modules_come_back_in_their_order() -> None:
    texts = [constant(i) + "\n" * (i * 7 % 5) for i in range(12)]
    calls: list[int] = []
    objects = compile_modules(texts, host_features(), jobs=3, finished=lambda: calls.append(1))
    assert len(calls) == 12
    assert objects == compile_modules(texts, host_features(), jobs=1)
    for i, data in enumerate(objects):
        code = NativeCode([data], ["number"])
        assert function(code.address("number"), ctypes.c_int64)() == i


def test_no_modules() -> None:
    assert compile_modules([], host_features()) == []


def test_compiles_where_llvmlite_hides_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = compile_module(SINE, host_features())
    monkeypatch.setattr(native, "_unlocked", lambda name: getattr(native.ffi.lib, name))
    assert compile_module(SINE, host_features()) == expected


def test_many_threads_compile_and_load_at_once() -> None:
    def build(i: int) -> int:
        code = NativeCode([compile_module(constant(i), host_features())], ["number"])
        return int(function(code.address("number"), ctypes.c_int64)())

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(build, range(200))) == list(range(200))


def test_code_goes_with_its_owner() -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    data = compile_module(SINE, host_features())

    def executable_pages() -> int:
        gc.collect()
        return sum("r-xp 00000000 00:00" in line for line in maps.read_text().splitlines())

    before = executable_pages()
    owners = [NativeCode([data], ["sine"]) for _ in range(20)]
    assert executable_pages() > before
    del owners
    assert executable_pages() <= before


def test_text_that_does_not_parse_names_the_line() -> None:
    with pytest.raises(CodegenError) as info:
        compile_module("define void @f() {\n  %x = ad i32 1, 2\n  ret void\n}\n", host_features())
    assert "expected instruction opcode" in str(info.value)
    assert "line 2: %x = ad i32 1, 2" in str(info.value)


def test_text_that_is_not_valid_names_the_line() -> None:
    text = (
        "define i32 @f(i1 %c) {\nentry:\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 2\n"
        "  br label %b\nb:\n  ret i32 %x\n}\n"
    )
    with pytest.raises(CodegenError) as info:
        compile_module(text, host_features())
    assert "does not dominate" in str(info.value)
    assert "line 5: %x = add i32 1, 2" in str(info.value)


def test_an_error_in_one_of_several_modules() -> None:
    with pytest.raises(CodegenError, match="does not parse"):
        compile_modules([SINE, "nonsense", TWICE], host_features(), jobs=2)


def test_code_that_calls_nothing_known_does_not_load() -> None:
    text = "declare void @no_such_function()\n" + (
        "define void @f() {\n  call void @no_such_function()\n  ret void\n}\n"
    )
    with pytest.raises(CodegenError, match="does not load"):
        NativeCode([compile_module(text, host_features())], ["f"])


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(CodegenError, match="missing"):
        NativeCode([compile_module(SINE, host_features())], ["missing"])


def test_bytes_that_are_no_object() -> None:
    with pytest.raises(CodegenError, match="does not load"):
        NativeCode([b"nonsense" * 40], ["f"])


def test_every_instruction_set_can_be_asked_for() -> None:
    assert set(INSTRUCTION_SETS) == set(TABLE)


def test_another_architecture_is_refused() -> None:
    other = "neon" if host_features().name != "neon" else "sse2"
    with pytest.raises(ConfigError, match="the host does not have these instructions"):
        choose_features(other)


BYTES = """
declare <64 x i8> @llvm.ctpop.v64i8(<64 x i8>)
define void @mix(ptr %x, <64 x i8> %by) nounwind {{
  %a = load <64 x i8>, ptr %x
  %b = shufflevector <64 x i8> %a, <64 x i8> %a, <64 x i32> <{places}>
  %c = call <64 x i8> @llvm.ctpop.v64i8(<64 x i8> %b)
  store <64 x i8> %c, ptr %x
  ret void
}}
""".format(places=", ".join(f"i32 {i * 37 % 64}" for i in range(64)))


@pytest.mark.skipif("x86_64" not in llvm.get_default_triple(), reason="another architecture")
def test_vnni_does_not_stand_for_all_of_ice_lake() -> None:
    """Older CPUs have it without the permutations and counts of bytes."""
    text = assembly(BYTES, TABLE["avx512_vnni"])
    assert "zmm" in text
    assert not any(name in text for name in ("vpermb", "vpermi2b", "vpopcntb"))


def test_assembly_shows_the_function() -> None:
    assert "sine:" in assembly(SINE, host_features())


def test_the_pool_compiles_for_another_architecture() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no aarch64")
    machine = target.create_target_machine(features=TABLE["neon"].flags)
    module = llvm.parse_assembly(pool_text(TABLE["neon"]), llvm.create_context())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    text = machine.emit_assembly(module)
    assert "fpcr" in text.lower()


@contextmanager
def _interrupts() -> Iterator[None]:
    """Handle SIGINT as a terminal's process does; a shell lets its background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_does_not_wait_for_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, ended = threading.Event(), threading.Event(), []
    main = threading.main_thread().ident
    assert main is not None

    def slow(text: str, _: object) -> bytes:
        begun.set()
        assert go.wait(60)
        ended.append(text)
        return b""

    def interrupt() -> None:
        assert begun.wait(60)
        signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(native, "compile_module", slow)
    for jobs in (1, 2):
        begun.clear()
        go.clear()
        ended.clear()
        threading.Thread(target=interrupt).start()
        with _interrupts(), pytest.raises(KeyboardInterrupt):
            compile_modules([TWICE, SINE, "a", "b"], host_features(), jobs=jobs)
        assert not ended, "it waits for no module"
        go.set()
        while any(t.name == "monograph-compile" for t in threading.enumerate()):
            time.sleep(0.001)
        assert len(ended) <= jobs, "those that have not begun are dropped"
