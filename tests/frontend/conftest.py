"""Tests of the frontend ask what a model means: they run on the reference."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOGRAPH_TARGET", "reference")
