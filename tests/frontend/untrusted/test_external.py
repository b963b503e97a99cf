"""External data: nothing outside the model's own directory is read, whatever the model says."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.frontend.onnx import read_model
from monograph.frontend.onnx.tensors import read_tensor
from tests.frontend.untrusted.hostile import model, refused

DATA = np.arange(8, dtype=np.float32)


def external(
    location: str | None, dims=(4,), kind: int = TensorProto.FLOAT, **entries
) -> TensorProto:
    made = TensorProto(name="w", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    if location is not None:
        made.external_data.add(key="location", value=location)
    for key, value in entries.items():
        made.external_data.add(key=key, value=str(value))
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A model's directory with data in it, and a secret beside the directory."""
    inside = tmp_path / "home"
    (inside / "sub").mkdir(parents=True)
    (inside / "data.bin").write_bytes(DATA.tobytes())
    (inside / "sub" / "deep.bin").write_bytes(DATA.tobytes())
    (tmp_path / "secret.bin").write_bytes(DATA.tobytes())
    return inside


def test_slices_of_a_file(home: Path):
    read = lambda *a, **k: read_tensor(external(*a, **k), home).array  # noqa: E731
    assert read("data.bin", length=16).tolist() == [0, 1, 2, 3]
    assert read("data.bin", offset=8, length=16).tolist() == [2, 3, 4, 5]
    assert read("data.bin", offset=16).tolist() == [4, 5, 6, 7]
    assert read("sub/deep.bin", (2, 1), offset=24, checksum="ignored").tolist() == [[6], [7]]
    assert read("./data.bin", (0,), offset=32).tolist() == []
    assert read("data.bin", (4,), TensorProto.INT4, offset=8, length=2).tolist() == [0, 0, 0, 0]


def test_a_file_that_is_missing_is_named_with_its_directory(home: Path):
    with refused("cannot be read: No such file", f"a file in {home}", "absent.bin"):
        read_tensor(external("absent.bin"), home)


def test_a_model_by_its_path(home: Path, monkeypatch: pytest.MonkeyPatch):
    node = helper.make_node("Add", ["x", "w"], ["y"])
    onnx.save(model([node], initializer=[external("data.bin", [2])]), home / "m.onnx")
    x = np.ones(2, np.float32)
    assert monograph.load(home / "m.onnx").run({"x": x})[0].tolist() == [1, 2]
    monkeypatch.chdir(home)
    assert monograph.load("m.onnx").run({"x": x})[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "sub/../data.bin",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "..\\secret.bin",
        "C:\\secret.bin",
        "\\\\server\\share",
    ],
)
def test_paths_that_lead_out(home: Path, location: str):
    with refused("'w'", "outside the model's directory", location):
        read_tensor(external(location), home)


def test_an_absolute_path_that_stays_inside_is_refused_too(home: Path):
    with refused("'w'", "outside"):
        read_tensor(external(str(home / "data.bin")), home)


def test_links_that_lead_out(home: Path):
    (home / "link.bin").symlink_to("../secret.bin")
    (home / "far").symlink_to("..")
    (home / "absolute.bin").symlink_to("/etc/passwd")
    (home / "twice.bin").symlink_to("link.bin")
    for location in ("link.bin", "far/secret.bin", "absolute.bin", "twice.bin"):
        with refused("'w'", "outside the model's directory", location):
            read_tensor(external(location), home)


def test_a_link_that_stays_inside(home: Path):
    (home / "link.bin").symlink_to("sub/deep.bin")
    (home / "near").symlink_to("sub")
    for location in ("link.bin", "near/deep.bin"):
        assert read_tensor(external(location), home).array.tolist() == [0, 1, 2, 3]


def test_links_that_lead_nowhere(home: Path):
    (home / "loop.bin").symlink_to("loop.bin")
    (home / "gone.bin").symlink_to("absent.bin")
    for location in ("loop.bin", "gone.bin", "absent.bin", "absent/data.bin", "data.bin/x"):
        with refused("'w'", location):
            read_tensor(external(location), home)


def test_a_link_put_there_after_the_check(home: Path, monkeypatch: pytest.MonkeyPatch):
    """The path is plain when it is canonicalised, and a link when it is opened."""
    from monograph.frontend import safe_open as module

    check = module._contained

    def swap(directory: Path, location: str, label: str) -> tuple[Path, tuple[str, ...]]:
        parts = check(directory, location, label)
        (home / "data.bin").unlink(missing_ok=True)
        (home / "data.bin").symlink_to("../secret.bin")
        return parts

    monkeypatch.setattr(module, "_contained", swap)
    with refused("'w'", "outside the model's directory"):
        read_tensor(external("data.bin"), home)

    def swap_directory(directory: Path, location: str, label: str) -> tuple[Path, tuple[str, ...]]:
        parts = check(directory, location, label)
        (home / "sub").rename(home / "moved")
        (home / "sub").symlink_to(".")
        return parts

    monkeypatch.setattr(module, "_contained", swap_directory)
    with refused("'w'", "outside the model's directory"):
        read_tensor(external("sub/deep.bin"), home)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot of a hub's cache: its files are links to blobs of the same model."""
    tree = tmp_path / "hub" / "models--owner--name"
    folder = tree / "snapshots" / "0123abcd"
    (folder / "onnx").mkdir(parents=True)
    (tree / "blobs").mkdir()
    (tree / "blobs" / "beef").write_bytes(DATA.tobytes())
    (folder / "data.bin").symlink_to("../../blobs/beef")
    (folder / "onnx" / "data.bin").symlink_to("../../../blobs/beef")
    return folder


def test_links_to_blobs_of_a_hubs_cache(snapshot: Path):
    for folder in (snapshot, snapshot / "onnx"):
        assert read_tensor(external("data.bin"), folder).array.tolist() == [0, 1, 2, 3]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    onnx.save(model([node], initializer=[external("data.bin", [2])]), snapshot / "real.onnx")
    (snapshot / "real.onnx").rename(snapshot.parents[1] / "blobs" / "cafe")
    (snapshot / "m.onnx").symlink_to("../../blobs/cafe")
    x = np.ones(2, np.float32)
    assert monograph.load(snapshot / "m.onnx").run({"x": x})[0].tolist() == [1, 2]


def test_other_links_of_a_hubs_cache(snapshot: Path):
    tree = snapshot.parents[1]
    (tree / "refs").mkdir()
    for path in (tree / "refs" / "main", tree.parent / "other.bin", tree / "blobs" / "real"):
        path.write_bytes(DATA.tobytes())
    (tree.parent / "models--evil--name" / "blobs").mkdir(parents=True)
    (tree.parent / "models--evil--name" / "blobs" / "x").write_bytes(DATA.tobytes())
    (tree / "blobs" / "away").symlink_to("../../other.bin")
    os.link(tree / "blobs" / "real", tree / "blobs" / "hard")
    links = (
        "refs/main", "../other.bin", "../models--evil--name/blobs/x", "blobs/away", "blobs/hard",
    )  # fmt: skip
    for number, target in enumerate(links):
        (snapshot / f"{number}.bin").symlink_to(f"../../{target}")
        with refused("'w'", f"{number}.bin"):
            read_tensor(external(f"{number}.bin"), snapshot)


def test_a_snapshot_outside_of_a_hubs_cache(tmp_path: Path):
    folder = tmp_path / "name" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (tmp_path / "name" / "blobs").mkdir()
    (tmp_path / "name" / "blobs" / "beef").write_bytes(DATA.tobytes())
    (folder / "data.bin").symlink_to("../../blobs/beef")
    with refused("'w'", "outside the model's directory"):
        read_tensor(external("data.bin"), folder)


def test_blobs_that_become_a_link_after_the_check(snapshot: Path, monkeypatch: pytest.MonkeyPatch):
    from monograph.frontend import safe_open as module

    check, tree = module._contained, snapshot.parents[1]

    def swap(directory: Path, location: str, label: str) -> tuple[Path, tuple[str, ...]]:
        found = check(directory, location, label)
        (tree / "blobs").rename(tree / "moved")
        (tree / "blobs").symlink_to("moved")
        return found

    monkeypatch.setattr(module, "_contained", swap)
    with refused("'w'", "outside the model's directory"):
        read_tensor(external("data.bin"), snapshot)


def test_hard_links(home: Path):
    os.link(home.parent / "secret.bin", home / "hard.bin")
    with refused("'w'", "hard links", "hard.bin", "copy the data"):
        read_tensor(external("hard.bin"), home)


def test_things_that_are_not_plain_files(home: Path):
    os.mkfifo(home / "pipe")
    for location in ("pipe", "sub", ".", "sub/"):
        with refused("'w'", "is not a plain file", location):
            read_tensor(external(location), home)


def test_a_device(home: Path):
    try:
        os.mknod(home / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices can only be made by root")
    with refused("'w'"):
        read_tensor(external("zero"), home)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (external(None), ("without a location",)),
        (external(""), ("without a location",)),
        (external("a\0b"), ("bad location",)),
        (external("a" * 5000), ("bad location",)),
        (external("data.bin", offset=-4), ("bad offset", "-4")),
        (external("data.bin", length=-16), ("bad length", "-16")),
        (external("data.bin", offset="0x10"), ("bad offset", "0x10")),
        (external("data.bin", offset="1_0"), ("bad offset",)),
        (external("data.bin", offset="٣"), ("bad offset",)),
        (external("data.bin", offset="9" * 5000), ("bad offset", "999")),
        (external("data.bin", offset=2**63 - 1), ("beyond the end", "32 bytes")),
        (external("data.bin", offset=20), ("beyond the end", "20..36", "32 bytes")),
        (external("data.bin", length=12), ("length", "16 bytes", "12 bytes")),
        (external("data.bin", length=2**62), ("length", "16 bytes")),
        (external("data.bin", dims=[9]), ("beyond the end", "36")),
        (external("data.bin", dims=[2**40]), ("too large",)),
        (external("data.bin", dims=[-1]), ("negative",)),
        (external("data.bin", kind=TensorProto.STRING), ("strings",)),
    ],
)
def test_entries_that_lie(home: Path, given: TensorProto, words: tuple[str, ...]):
    with refused("'w'", *words):
        read_tensor(given, home)


def test_entries_given_twice(home: Path):
    made = external("data.bin")
    made.external_data.add(key="location", value="sub/deep.bin")
    with refused("'w'", "'location'", "twice"):
        read_tensor(made, home)


def test_entries_that_are_not_text(home: Path):
    raw = external("mark").SerializeToString().replace(b"mark", b"m\xffrk")
    with refused("'w'", "not UTF-8"):
        read_tensor(TensorProto.FromString(raw), home)


def test_a_huge_file_is_not_read_for_a_slice(home: Path):
    with open(home / "huge.bin", "wb") as file:
        file.truncate(1 << 40)
    array = read_tensor(external("huge.bin", offset=1 << 39), home).array
    assert array.tolist() == [0, 0, 0, 0]


def test_no_directory():
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], initializer=[external("data.bin", [2])]
    )
    for source in (made, made.SerializeToString()):
        with refused("'w'", "without a directory", "load the model by its path"):
            monograph.load(source)


def test_no_descriptor_is_left_open(home: Path):
    (home / "link.bin").symlink_to("../secret.bin")
    os.link(home.parent / "secret.bin", home / "hard.bin")
    before = len(os.listdir("/proc/self/fd"))
    for location in ("data.bin", "sub/deep.bin", "link.bin", "hard.bin", "absent", "sub", "sub/no"):
        for _ in range(3):
            try:
                read_tensor(external(location), home)
            except monograph.errors.ModelError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_read_model_keeps_the_directory(home: Path):
    onnx.save(model([helper.make_node("Relu", ["x"], ["y"])]), home / "m.onnx")
    assert read_model(home / "m.onnx").directory == home.resolve()
