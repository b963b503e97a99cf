"""Models compiled ahead of time: one file that loads without the model, and is checked."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import monograph
from monograph.errors import ConfigError, ModelError
from monograph.runtime.cache import package as package_module

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}>
{ a = Mul(x, w)  y = Softmax(a) }"""


def fed(rows: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)}


@pytest.fixture
def model() -> bytes:
    return onnx.parser.parse_model(TEXT).SerializeToString()


@pytest.fixture(params=["now", "off"])
def kind(request: pytest.FixtureRequest) -> str:
    """The option `specialise`: a package of exact code, and one of code for any shape."""
    return str(request.param)


@pytest.fixture
def saved(model: bytes, kind: str, tmp_path: Path) -> Path:
    session = monograph.load(model, specialise=kind)
    session.run(fed())
    path = tmp_path / "m.mono"
    session.save(path)
    return path


def test_a_package_gives_the_same_answers(model: bytes, saved: Path) -> None:
    session, package = monograph.load(model), monograph.load(saved)
    assert (package.inputs, package.outputs) == (session.inputs, session.outputs)
    np.testing.assert_array_equal(package.run(fed())[0], session.run(fed())[0])
    assert package.stats["from_disk"] == 1


def test_the_same_model_gives_the_same_file(
    model: bytes, saved: Path, kind: str, tmp_path: Path
) -> None:
    session = monograph.load(model, cache_dir="", specialise=kind)
    session.run(fed())
    session.save(tmp_path / "again.mono")
    assert (tmp_path / "again.mono").read_bytes() == saved.read_bytes()


def test_a_package_says_what_it_holds(saved: Path, kind: str) -> None:
    with zipfile.ZipFile(saved) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        names = set(archive.namelist())
        digests = {n: hashlib.sha256(archive.read(n)).hexdigest() for n in manifest["members"]}
    assert manifest["kind"] == "monograph package"
    assert manifest["monograph"] == monograph.__version__
    exact = kind == "now"
    assert manifest["shapes"] == ([{"x": [2, 4]}] if exact else [])
    assert manifest["variants"] == (0 if exact else 1)
    assert manifest["signature"]["inputs"] == [["x", "f32[N, 4]"]]
    assert digests == {n: m["sha256"] for n, m in manifest["members"].items()}
    assert names == {"manifest.json", "manifest.sha256", *manifest["members"]}
    place = "0" if exact else "any0"
    assert {f"{place}/{name}" for name in ("layout", "object0", "constants")} <= names


def test_several_shapes_in_one_package(model: bytes, tmp_path: Path) -> None:
    session = monograph.load(model, specialise="now")
    expected = {rows: session.run(fed(rows))[0] for rows in (1, 5)}
    session.save(tmp_path / "m.mono")
    package = monograph.load(tmp_path / "m.mono")
    for rows, y in expected.items():
        np.testing.assert_array_equal(package.run(fed(rows))[0], y)
    with pytest.raises(ConfigError, match="no code for inputs of these shapes") as e:
        package.run(fed(3))
    assert (e.value.expected, e.value.given) == ("x: [1, 4]; x: [5, 4]", "x: [3, 4]")
    package.save(tmp_path / "again.mono")
    np.testing.assert_array_equal(
        monograph.load(tmp_path / "again.mono").run(fed(5))[0], expected[5]
    )


def test_dims_may_name_what_a_package_holds(model: bytes, tmp_path: Path) -> None:
    session = monograph.load(model, specialise="now")
    for rows in (1, 5):
        session.run(fed(rows))
    path = tmp_path / "m.mono"
    session.save(path)
    package = monograph.load(path, dims={"N": 5})
    assert package.packaged_sizes == [{"N": 1}, {"N": 5}]
    assert [str(p) for p in package.inputs] == ["x: f32[5, 4]"]
    np.testing.assert_array_equal(package.run(fed(5))[0], session.run(fed(5))[0])
    for wrong in ({"N": 3}, {"M": 1}):
        with pytest.raises(ConfigError, match=r"another value of dims") as e:
            monograph.load(path, dims=wrong)
        assert e.value.expected == "N=1; N=5"
    package.save(tmp_path / "again.mono")
    assert monograph.load(tmp_path / "again.mono").packaged_sizes == [{"N": 5}]


def test_dims_that_were_bound_may_be_named_again(model: bytes, tmp_path: Path) -> None:
    session = monograph.load(model, dims={"N": 2})
    expected = session.run(fed())[0]
    session.save(tmp_path / "m.mono")
    package = monograph.load(tmp_path / "m.mono", dims={"N": 2})
    np.testing.assert_array_equal(package.run(fed())[0], expected)


def test_a_package_saved_again_keeps_its_options(model: bytes, tmp_path: Path) -> None:
    session = monograph.load(model, threads=3, cache_dir="")
    session.run(fed())
    session.save(tmp_path / "m.mono")
    package = monograph.load(tmp_path / "m.mono")
    assert package.threads == 3
    package.run(fed())
    package.save(tmp_path / "again.mono")
    assert (tmp_path / "again.mono").read_bytes() == (tmp_path / "m.mono").read_bytes()


def test_a_package_has_no_graph(saved: Path) -> None:
    session = monograph.load(saved)
    for ask in (lambda: session.graph, lambda: session.bound_graph(fed())):
        with pytest.raises(ConfigError, match="compiled code, and no graph"):
            ask()


def test_exact_code_of_a_package_has_no_program(model: bytes, tmp_path: Path) -> None:
    session = monograph.load(model, specialise="now")
    session.run(fed())
    session.save(tmp_path / "m.mono")
    executable = monograph.load(tmp_path / "m.mono").executable(fed())
    with pytest.raises(ConfigError, match="compiled code, and no graph"):
        _ = executable.program  # type: ignore[attr-defined]


def test_nothing_compiled_is_nothing_to_save(model: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing has been compiled"):
        monograph.load(model).save(tmp_path / "m.mono")


def test_what_the_host_computes_cannot_be_saved(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (string[2] a) => (string[2] y) { y = StringConcat(a, a) }"""
    session = monograph.load(onnx.parser.parse_model(text))
    session.run({"a": np.array(["p", "q"], object)})
    with pytest.raises(ConfigError, match="cannot be saved") as e:
        session.save(tmp_path / "m.mono")
    assert e.value.given == "the host takes part in a run: string_concat (StringConcat#0)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"target": "reference"}, "target"),
        ({"dims": {"M": 3}}, "dims"),
        ({"donate": {"y": "x"}}, "donate"),
        ({"threads": 77}, "threads"),
        ({"cpu_isa": "baseline"}, "cpu_isa"),
        ({"winograd": False}, "winograd"),
    ],
)
def test_options_must_not_ask_for_other_code(
    saved: Path, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"compiled with another value of {name}\n"):
        monograph.load(saved, **options)


def test_an_option_of_the_environment_is_named(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOGRAPH_THREADS", "77")
    with pytest.raises(ConfigError, match="unset MONOGRAPH_THREADS"):
        monograph.load(saved)


def test_a_place_that_cannot_be_written_is_named(saved: Path, tmp_path: Path) -> None:
    session = monograph.load(saved)
    session.run(fed())
    wrong = tmp_path / "nowhere" / "m.mono"
    with pytest.raises(ConfigError, match="cannot be written: No such file") as e:
        session.save(wrong)
    assert e.value.given == str(wrong)


@pytest.mark.parametrize("name", ["format", "monograph", "triple"])
def test_another_version_is_refused(saved: Path, name: str) -> None:
    rewrite(saved, lambda manifest: manifest | {name: "another"})
    with pytest.raises(ConfigError, match=f"for another {name}") as e:
        monograph.load(saved)
    assert e.value.given == "another"
    assert "monograph compile" in str(e.value)


def test_instructions_that_the_host_lacks_are_refused(saved: Path) -> None:
    options = {"features": "of another machine"}
    rewrite(saved, lambda manifest: manifest | {"options": manifest["options"] | options})
    with pytest.raises(ConfigError, match="no such instruction set"):
        monograph.load(saved)


def rewrite(path: Path, change: Any) -> None:
    """A package with another manifest, and a digest that fits it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = json.dumps(change(json.loads(members["manifest.json"]))).encode()
    members["manifest.json"] = head
    members["manifest.sha256"] = hashlib.sha256(head).hexdigest().encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_a_flipped_bit_in_any_member_is_found(saved: Path) -> None:
    whole = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        infos = archive.infolist()
    for info in infos:
        name, extra = struct.unpack("<HH", whole[info.header_offset + 26 :][:4])
        start = info.header_offset + 30 + name + extra
        for at in {start, start + info.file_size // 2, start + info.file_size - 1}:
            saved.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(ModelError, match="the package is damaged"):
                monograph.load(saved).run(fed())


def test_digests_are_checked_and_not_only_what_zip_checks(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for spoilt in members:
        data = members | {spoilt: members[spoilt][:-1] + b"?"}
        with zipfile.ZipFile(saved, "w") as archive:
            for name, content in data.items():
                archive.writestr(name, content)
        with pytest.raises(ModelError, match=r"damaged: .* does not match its digest"):
            monograph.load(saved).run(fed())


def test_cut_short_or_of_another_kind(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="damaged"):
            monograph.load(saved)
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("hello.txt", "no package")
    with pytest.raises(ModelError, match="a zip archive without a model in it"):
        monograph.load(saved)


@pytest.mark.parametrize("member", ["layout", "object0", "constants"])
def test_a_member_that_is_missing(saved: Path, member: str) -> None:
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w") as archive:
        for name, data in members.items():
            if not name.endswith(f"/{member}"):
                archive.writestr(name, data)
    with pytest.raises(ModelError, match="damaged"):
        monograph.load(saved).run(fed())


def test_a_package_is_written_whole_or_not_at_all(
    model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = monograph.load(model)
    session.run(fed())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package_module, "_add", full)
    with pytest.raises(ConfigError, match="No space left"):
        session.save(tmp_path / "m.mono")
    assert list(tmp_path.iterdir()) == []
