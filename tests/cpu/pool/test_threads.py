"""The number of threads of a process, and the options of the CPU target."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monograph.config import Config, make_config
from monograph.errors import ConfigError
from monograph.runtime.cpu import threads
from monograph.runtime.cpu.threads import (
    MAX_THREADS,
    available_threads,
    cgroup_quota,
    choose_threads,
)


def system(tmp_path: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A /proc/self with these cgroups, and files below the mount points."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    lines = [f"31 23 0:28 {mount}" for mount in mounts]
    (proc / "mountinfo").write_text("\n".join(lines).replace("@", str(tmp_path)) + "\n")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc


def test_version_2(tmp_path: Path) -> None:
    proc = system(
        tmp_path,
        "0::/slice/unit\n",
        ["/ @/cg rw - cgroup2 cgroup2 rw", "/ /proc rw - proc proc rw"],
        {"cg/slice/cpu.max": "250000 100000\n", "cg/slice/unit/cpu.max": "max 100000\n"},
    )
    assert cgroup_quota(proc) == 2.5


def test_version_2_in_a_container(tmp_path: Path) -> None:
    proc = system(
        tmp_path,
        "0::/\n",
        ["/docker/abc @/cg rw - cgroup2 cgroup rw"],
        {"cg/cpu.max": "50000 100000\n"},
    )
    assert cgroup_quota(proc) == 0.5


def test_version_1(tmp_path: Path) -> None:
    proc = system(
        tmp_path,
        "4:memory:/a\n3:cpu,cpuacct:/a/b\n0::/elsewhere\n",
        [
            "/ @/cg/memory rw - cgroup cgroup rw,memory",
            "/ @/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct",
            "/ @/cg/cpuset rw - cgroup cgroup rw,cpuset",
        ],
        {
            "cg/cpu/cpu.cfs_quota_us": "-1\n",
            "cg/cpu/cpu.cfs_period_us": "100000\n",
            "cg/cpu/a/cpu.cfs_quota_us": "300000\n",
            "cg/cpu/a/cpu.cfs_period_us": "100000\n",
            "cg/cpu/a/b/cpu.cfs_quota_us": "400000\n",
            "cg/cpu/a/b/cpu.cfs_period_us": "100000\n",
            "cg/memory/a/cpu.cfs_quota_us": "1000\n",
            "cg/memory/a/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_quota(proc) == 3.0


@pytest.mark.parametrize("text", ["", "max", "nonsense 100000", "100000 0", "max 100000"])
def test_no_limit(tmp_path: Path, text: str) -> None:
    mounts = ["/ @/cg rw - cgroup2 cgroup2 rw"]
    assert cgroup_quota(system(tmp_path, "0::/\n", mounts, {"cg/cpu.max": text})) is None


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2), (1, None, 1), (5000, None, 1024)],
)
def test_the_tighter_bound_holds(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: cores)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: quota)
    assert available_threads() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity masks")
def test_the_affinity_mask_counts() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_threads_asked_for() -> None:
    assert choose_threads(0) == available_threads()
    assert choose_threads(7) == 7
    assert choose_threads(MAX_THREADS) == MAX_THREADS
    with pytest.raises(ConfigError, match="threads is too large") as e:
        choose_threads(MAX_THREADS + 1)
    assert e.value.expected == f"at most {MAX_THREADS}"


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOGRAPH_THREADS", "3")
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")
    monkeypatch.setenv("MONOGRAPH_CACHE_BYTES", "1000")
    monkeypatch.setenv("MONOGRAPH_CPU_ISA", "avx2")
    config = make_config()
    assert (config.threads, config.cache_dir, config.cache_bytes) == (3, "", 1000)
    assert config.cpu_isa == "avx2"
    assert make_config(threads=2, cache_dir="here").threads == 2
    assert Config().cache_bytes == 8 << 30


@pytest.mark.parametrize("option", [{"threads": -1}, {"cache_bytes": -1}])
def test_options_out_of_range(option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="negative"):
        make_config(**option)
