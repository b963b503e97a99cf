"""Locks in a forked child, where the threads that held them do not exist.

A child has one thread: whatever lock another thread of its parent held would stay locked for ever.
What our own locks guard changes in single steps, so the child starts with new ones. For the locks
of others, such as those of modules that are being imported, a fork waits.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


class ForkLock:
    """A lock that its holder may enter again, and that is free in a forked child."""

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Replace the lock, in a child: the thread that holds it may not exist there."""
        lock = threading.RLock()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _renew() -> None:
    for lock in list(_locks):
        lock.renew()


def hold_during_fork(acquire: Callable[[], Any], release: Callable[[], Any]) -> None:
    """Make a fork wait for a lock of another library, so that both processes find it free."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)


class Busy:
    """Work inside someone else's library that several threads do at once, and a fork waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        hold_during_fork(self._wait, self._changed.release)

    def __enter__(self) -> None:
        with self._changed:
            self._working += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._working -= 1
            self._changed.notify_all()

    def _wait(self) -> None:
        """Returns when nobody works, and lets nobody begin."""
        self._changed.acquire()
        while self._working:
            self._changed.wait()


def import_whole(*needed: str | Callable[[], None]) -> None:
    """Imports modules that are needed late, in one step as far as forks are concerned.

    `needed` has names of modules, and functions that import some. A child that is forked in the
    middle would find modules locked by a thread that it has not.
    """
    with _importing:
        for one in needed:
            if isinstance(one, str):
                importlib.import_module(one)
            else:
                one()


_importing = threading.RLock()
hold_during_fork(_importing.acquire, _importing.release)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
