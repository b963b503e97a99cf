"""Calls of the command line by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from monograph.cli.main import app


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def call_json(*arguments: object) -> dict[str, Any]:
    """The one JSON object on stdout."""
    result = call(*arguments, "--json")
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def change(recording: Path, **replaced: Any) -> Path:
    with np.load(recording) as archive:
        arrays = dict(archive)
    arrays.update({k.replace("_", ":"): v for k, v in replaced.items()})
    np.savez(recording, **arrays)
    return recording
