"""Packages for GPUs: compiled on a machine without one, loaded on a matching one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monograph
from monograph.codegen.triton.module.launch import ARCHES
from monograph.errors import ConfigError, ModelError
from monograph.runtime.gpu.artefact import GpuArtefact
from tests.gpu import gpu_models as models
from tests.gpu.gpu_models import FakeDevice, use

pytestmark = models.INTERPRETED
FEEDS = {"x": np.ones((2, 33), np.float32)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as machine code for sm_90, made by Triton in a process of its own."""
    path = tmp_path_factory.mktemp("packages") / "linear.mono"
    session = monograph.load(models.linear(), target="gpu:sm_90", precision="f16", cache_dir="")
    executable = session.executable(FEEDS)
    assert executable.kernels == 1
    session.save(path)
    return path


def device(monkeypatch: pytest.MonkeyPatch, arch: str = "sm_90") -> FakeDevice:
    made = FakeDevice(ARCHES[arch])
    use(made, monkeypatch)
    return made


def test_what_is_in_it(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        code = archive.read("0/kernel0")
    assert manifest["arch"] == "sm_90"
    assert manifest["options"]["precision"] == "f16"
    assert manifest["shapes"] == [{"x": [2, 33]}]
    (weight,) = (m for m in manifest["members"] if m.startswith("weights/"))
    assert {"0/layout", "0/kernel0", weight} == set(manifest["members"])
    assert code[:4] == b"\x7fELF"


def test_it_loads_without_compiling(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = device(monkeypatch)

    def never(*args: Any) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr("monograph.runtime.gpu.build.tune.build_all", never)
    session = monograph.load(package, target="gpu")
    (found,) = session.run(FEEDS)
    assert found.shape == (2, 20)
    assert session.stats["from_disk"] == session.stats["launches_per_run"] == 1
    assert [b.code[:4] for b in used.loads] == [b"\x7fELF"]


def test_members_come_back_as_they_were(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        names = [n for n in archive.namelist() if n.startswith("0/")]
        members = {n[2:]: memoryview(archive.read(n)) for n in names}
    artefact = GpuArtefact.of(members, lambda digests: {})
    again = {n: bytes(memoryview(m).cast("B")) for n, m in artefact.members().items()}
    assert again == {n: bytes(m) for n, m in members.items()}
    assert [s.shape for s in artefact.layout.inputs] == [(2, 33)]
    assert [str(s.narrowed) for s in artefact.layout.inputs] == ["f16"]


def test_a_package_can_be_saved_again(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device(monkeypatch)
    session = monograph.load(package, target="gpu")
    session.run(FEEDS)
    session.save(tmp_path / "again.mono")
    assert (tmp_path / "again.mono").read_bytes() == package.read_bytes()


def test_another_architecture_is_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device(monkeypatch, "sm_80")
    with pytest.raises(ConfigError, match="another GPU architecture") as caught:
        monograph.load(package, target="gpu")
    assert "gpu:sm_80" in str(caught.value)


def test_another_target_is_refused(package: Path) -> None:
    with pytest.raises(ConfigError, match="another value of target") as caught:
        monograph.load(package)
    assert "target='gpu'" in str(caught.value)


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"tf32": True}, {"dims": {"n": 3}}])
def test_other_options_are_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    device(monkeypatch)
    with pytest.raises(ConfigError, match=f"another value of {next(iter(options))}"):
        monograph.load(package, target="gpu", **options)


def test_other_shapes_are_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device(monkeypatch)
    with pytest.raises(ConfigError, match="no code for inputs of these shapes"):
        monograph.load(package, target="gpu").run({"x": np.ones((3, 33), np.float32)})


def test_damage_is_found(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device(monkeypatch)
    data = bytearray(package.read_bytes())
    at = data.find(b"\x7fELF") + 100
    data[at] ^= 1
    bad = tmp_path / "bad.mono"
    bad.write_bytes(data)
    with pytest.raises(ModelError, match="damaged"):
        monograph.load(bad, target="gpu").run(FEEDS)


def test_a_model_with_steps_on_the_host_cannot_be_saved(tmp_path: Path) -> None:
    session = monograph.load(models.sequences(), target="gpu:sm_90", cache_dir="")
    session.executable({"x": np.ones((3, 4), np.float32)})
    with pytest.raises(ConfigError, match="cannot be saved"):
        session.save(tmp_path / "x.mono")


def test_what_is_interpreted_has_no_code_to_save(tmp_path: Path) -> None:
    session = monograph.load(models.linear(), target="gpu:interpreter", cache_dir="")
    session.run(FEEDS)
    with pytest.raises(ConfigError, match="cannot be saved"):
        session.save(tmp_path / "x.mono")


def test_kernels_are_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> Any:
        options = {"target": "gpu:sm_80", "cache_dir": str(tmp_path / "cache")}
        session = monograph.load(models.linear(), **options)
        session.executable(FEEDS)
        return session

    first = compiled()
    assert first.gpu.kernels.found == 0
    first.save(tmp_path / "first.mono")

    def none_missing(wanted: Any, *rest: Any) -> dict[Any, Any]:
        assert not list(wanted)
        return {}

    monkeypatch.setattr("monograph.runtime.gpu.cross_compiler.build_all", none_missing)
    second = compiled()
    assert second.gpu.kernels.found == 1
    second.save(tmp_path / "second.mono")
    assert (tmp_path / "first.mono").read_bytes() == (tmp_path / "second.mono").read_bytes()


def test_a_device_finds_kernels_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device loads the kernels that `monograph compile` made for its architecture."""

    class Strict(FakeDevice):
        def __init__(self) -> None:
            super().__init__(ARCHES["sm_80"])
            self.known: dict[Any, Any] = {}

        def has(self, wanted: Any) -> bool:
            return wanted in self.known

        def load(self, wanted: Any, binary: Any) -> None:
            self.known[wanted] = binary

        def record(self, launch: Any, arguments: Any, stem: str) -> Any:
            return self.loaded(next(iter(self.known.values())), launch.grid, arguments)

    options = {"cache_dir": str(tmp_path / "cache"), "tune": "off"}
    monograph.load(models.linear(), target="gpu:sm_80", **options).executable(FEEDS)
    used = Strict()
    use(used, monkeypatch)
    monkeypatch.setattr("monograph.runtime.gpu.build.tune.build_all", lambda wanted, *_: {})
    session = monograph.load(models.linear(), target="gpu", **options)
    session.run(FEEDS)
    assert len(used.known) == len(used.loads) == 1
