"""The number of threads of this process: its affinity mask and the quota of its cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from monograph.errors import ConfigError

MAX_THREADS = 1024
"""The most threads that one launch may have."""
_PROC = Path("/proc/self")


def available_threads() -> int:
    """Threads that can run at once; 1 where there are no POSIX threads."""
    if os.name != "posix":
        return 1
    quota = cgroup_quota()
    cores = _affinity()
    # A fraction of a core is left out: a thread that is throttled makes all others wait.
    return max(1, min(cores, int(quota) if quota is not None else cores, MAX_THREADS))


def choose_threads(asked: int) -> int:
    """The threads of a configuration: as many as it asks for, or as many as there can be."""
    if asked > MAX_THREADS:
        raise ConfigError(
            "threads is too large",
            expected=f"at most {MAX_THREADS}",
            given=asked,
            hint=f"leave threads out: this process can use {available_threads()}",
        )
    return asked or available_threads()


def cgroup_quota(proc: Path = _PROC) -> float | None:
    """The tightest CPU quota of this process in cores; None for no limit."""
    limits = [limit for place in _cgroups(proc) if (limit := _limit(place)) is not None]
    return min(limits, default=None)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroups(proc: Path) -> Iterator[Path]:
    """The directories of the CPU controller that this process is under, versions 1 and 2."""
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return
    groups_of: dict[str, PurePosixPath] = {}
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            groups_of["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
    for mount in mounts:
        head, _, tail = mount.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        if kind == "cgroup" and "cpu" not in options.replace(" ", ",").split(","):
            continue
        if kind not in groups_of:
            continue
        root, point = head.split(" ")[3:5]
        own = groups_of[kind]
        # Inside a container the mount may show only a part of the hierarchy.
        inside = own.relative_to(root) if own.is_relative_to(root) else PurePosixPath()
        place = Path(point) / inside
        yield place
        yield from (p for p in place.parents if p.is_relative_to(point))


def _limit(place: Path) -> float | None:
    """The quota that one directory sets, in cores."""
    try:
        if (place / "cpu.max").exists():
            quota, period = (place / "cpu.max").read_text().split()
        else:
            quota = (place / "cpu.cfs_quota_us").read_text().strip()
            period = (place / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
