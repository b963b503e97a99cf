"""Benchmarks that need what is not installed: one message that says what to install."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import capture, needs, timeline

from monograph.errors import ConfigError


@pytest.mark.parametrize("main", [capture.main, timeline.main])
def test_without_torch_the_extra_is_named(
    main: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def absent(*modules: str) -> None:
        raise ConfigError(f"there is no {modules}")

    monkeypatch.setattr(needs, "need", absent)
    monkeypatch.setattr("sys.argv", ["benchmark", "--results", str(tmp_path / "made")])
    with pytest.raises(SystemExit, match=r"needs torch and triton: pip install 'monograph\[gpu\]'"):
        main()
    assert capsys.readouterr().out == "", "nothing is said of single models"
    assert not (tmp_path / "made").exists()
