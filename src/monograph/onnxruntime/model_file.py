"""The file that `optimized_model_filepath` names."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

from monograph.onnxruntime.errors import OrtFail, OrtNotImplemented
from monograph.runtime.atomic_write import replacing_named


def write_model(source: str | bytes | os.PathLike[str], path: str) -> None:
    """Write a model as it is, with its external data inside.

    Monograph's own optimised form is a package; programs that ask for this file read it as ONNX.
    """
    if not isinstance(source, bytes) and zipfile.is_zipfile(source):
        raise OrtNotImplemented(
            f"a package holds no model for optimized_model_filepath ({path})",
            hint="load the model that the package was made from",
        )
    import onnx

    model: Any = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
    try:
        raw = model.SerializeToString()
    except Exception as e:  # protobuf limits a message to 2 GiB, by errors of several classes
        raise OrtFail(
            f"the model cannot be written to {path}: {e}",
            hint="leave optimized_model_filepath out, and load the model file",
        ) from e
    with replacing_named(Path(path), "the model") as file:
        file.write(raw)
