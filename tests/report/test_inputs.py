from __future__ import annotations

import io
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from monograph.errors import FeedError, MonographError
from monograph.ir import parse_type
from monograph.report.commands import input_files
from monograph.report.commands.input_files import read_archive, read_array, split_archive
from monograph.runtime.feeds import Port
from monograph.runtime.inputs import make_inputs
from tests.effort import CountedName, touches_of


def ports(**types: str) -> list[Port]:
    return [Port(name, parse_type(text)) for name, text in types.items()]


def test_random_inputs_fit_and_repeat():
    wanted = ports(x="f32[2, N]", ids="i64[N, 5]", flag="bool[]", z="c64[3]", words="str[2]")
    first, again = (make_inputs(wanted, {}, seed=3) for _ in range(2))
    other = make_inputs(wanted, {}, seed=4)
    assert first.random == ["x", "ids", "flag", "z", "words"]
    assert first.assumed == {"N": 1}
    assert first.feeds["x"].dtype == np.float32
    assert first.feeds["x"].shape == (2, 1)
    assert set(first.feeds["ids"].ravel()) <= {0, 1}
    for name, array in first.feeds.items():
        assert np.array_equal(array, again.feeds[name]), name
    assert not np.array_equal(first.feeds["x"], other.feeds["x"])


def test_given_arrays_bind_the_symbols_of_the_others():
    x = np.ones((4, 7), np.float32)
    made = make_inputs(ports(x="f32[B, N]", y="f32[N, 2]"), {"x": x}, seed=0)
    assert made.feeds["x"] is x
    assert made.feeds["y"].shape == (7, 2)
    assert made.random == ["y"]
    assert made.assumed == {}


def test_containers():
    made = make_inputs(ports(s="seq<f32[N]>", o="opt<f32[2]>"), {}, seed=0)
    assert [x.shape for x in made.feeds["s"]] == [(1,), (1,)]
    assert made.feeds["o"].shape == (2,)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(FeedError, match="its rank is not known"):
        make_inputs(ports(x="f32[*]"), {}, seed=0)
    with pytest.raises(FeedError, match="no such input"):
        make_inputs(ports(x="f32[1]"), {"y": np.ones(1)}, seed=0)
    with pytest.raises(MonographError, match="too large"):
        make_inputs(ports(x="f32[1000000, 1000000, 1000000]"), {}, seed=0)


def test_archives_are_split_by_prefix_or_by_name(tmp_path: Path):
    path = tmp_path / "io.npz"
    np.savez(path, **{"in:x": np.ones(2), "y": np.zeros(3), "out:s[0]": [1], "out:s[1]": [2]})
    arrays = read_archive(path)
    input_files, outputs = ports(x="f64[2]", z="f64[2]"), ports(y="f64[3]", s="seq<i64[1]>")
    feeds, expected = split_archive(arrays, input_files, outputs)
    assert list(feeds) == ["x"]
    assert list(expected) == ["y", "s"]
    assert [x.tolist() for x in expected["s"]] == [[1], [2]]


def test_types_that_npy_lacks_come_back(tmp_path: Path):
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    np.savez(tmp_path / "io.npz", x=x)
    arrays = read_archive(tmp_path / "io.npz")
    feeds, _ = split_archive(arrays, ports(x="bf16[2]"), [])
    assert feeds["x"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(feeds["x"], x)


def test_files_that_do_not_fit_are_refused(tmp_path: Path):
    missing, text, pickled = tmp_path / "no.npy", tmp_path / "text.npy", tmp_path / "object.npy"
    text.write_text("hello")
    np.save(pickled, np.array([{"a": 1}], object), allow_pickle=True)
    archive, array = tmp_path / "a.npz", tmp_path / "a.npy"
    np.savez(archive, x=np.ones(1))
    np.save(array, np.ones(1))
    cut, cut_archive = tmp_path / "cut.npy", tmp_path / "cut.npz"
    cut.write_bytes(array.read_bytes()[:-4])
    cut_archive.write_bytes(archive.read_bytes()[:-30])
    problems = {
        missing: "cannot be read",
        text: "not a",
        pickled: "holds Python objects",
        cut: "damaged or cut short",
        cut_archive: "damaged or cut short",
    }
    for path, problem in problems.items():
        for read in (read_array, read_archive):
            with pytest.raises(FeedError, match=problem) as e:
                read(path)
            assert "pickle" not in str(e.value)
    with pytest.raises(FeedError, match=r"use --inputs FILE\.npz"):
        read_array(archive)
    with pytest.raises(FeedError, match=r"must be an \.npz file, not a \.npy array"):
        read_archive(array)


def test_elements_of_a_sequence_are_numbered_on():
    arrays = {"out:s[0]": np.ones(1), "out:s[2]": np.ones(1)}
    with pytest.raises(FeedError, match="must be numbered from 0 without gaps") as e:
        split_archive(arrays, [], ports(s="seq<f32[N]>"))
    assert "out:s[1]" in str(e.value)


def lying_header() -> bytes:
    """The start of a .npy file that claims to hold 16 TiB."""
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**41,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + bytes(64)


def test_files_that_claim_more_than_they_hold(tmp_path: Path):
    array, archive = tmp_path / "a.npy", tmp_path / "a.npz"
    array.write_bytes(lying_header())
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", lying_header())
    with pytest.raises(FeedError, match="cannot hold"):
        read_array(array)
    with pytest.raises(FeedError, match="cannot hold"):
        read_archive(archive)


def test_an_archive_that_unpacks_to_more_than_the_machine_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(1 << 16))
    monkeypatch.setattr(input_files, "machine_memory", lambda: 1 << 19)
    with pytest.raises(FeedError, match="must fit into half of the memory"):
        read_archive(path)
    monkeypatch.setattr(input_files, "machine_memory", lambda: 1 << 21)
    assert read_archive(path)["x"].shape == (1 << 16,)


def test_many_given_inputs_are_looked_up_in_proportion():
    count = 500
    wanted = [Port(CountedName(f"x{i}"), parse_type("f32[1]")) for i in range(count)]
    given = {f"x{i}": np.ones(1, "f4") for i in range(count)}
    assert touches_of(lambda: make_inputs(wanted, given, seed=0)) < 20 * count
    arrays = {f"in:x{i}": np.ones(1, "f4") for i in range(count)}
    assert touches_of(lambda: split_archive(arrays, wanted, ())) < 20 * count
