"""`out=` and donated state on the GPU behave as on other targets."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

import monograph
from monograph.session import Session
from tests.gpu.test_session import TARGET
from tests.test_donation import *  # noqa: F403
from tests.test_donation import Load, cache_model

del test_nothing_is_copied_between_steps, test_a_donated_program_from_disk_is_in_place  # noqa: F821


@pytest.fixture
def load() -> Load:
    def made(model: onnx.ModelProto | None = None, **options: Any) -> Session:
        source = model or cache_model()
        return monograph.load(source, target=TARGET, cache_dir="", **options)

    return made
