"""Tensors of a model file as constant data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from monograph.frontend.onnx.dtypes import from_onnx
from monograph.ir import Literal


def read_tensor(tensor: onnx.TensorProto, directory: Path | None) -> Literal:
    base = str(directory) if directory is not None else ""
    return Literal(onnx.numpy_helper.to_array(tensor, base))


def read_sparse(sparse: onnx.SparseTensorProto, directory: Path | None) -> Literal:
    dense = np.zeros(tuple(sparse.dims), from_onnx(sparse.values.data_type).numpy)
    values = read_tensor(sparse.values, directory).array
    indices = read_tensor(sparse.indices, directory).array
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return Literal(dense)
