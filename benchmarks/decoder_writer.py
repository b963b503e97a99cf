"""Writes an ONNX graph node by node, and its weights to the file beside it as they are made.

A decoder of a billion parameters is never in memory as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.decoder_weights import (
    Array,
    Format,
    Matrix,
    draw,
    for_nbits,
    joined,
    packed_bits,
    turned,
)

MICROSOFT = "com.microsoft"
INLINE = 1024
"""Tensors below so many bytes stay in the graph."""
TYPES = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
_CODES = {
    "int4": (TensorProto.INT4, 4),
    "uint4": (TensorProto.UINT4, 4),
    "fp8": (TensorProto.FLOAT8E4M3FN, 8),
    "fp4": (TensorProto.FLOAT4E2M1, 4),
}


@dataclass
class Writer:
    """Collects nodes; `data` is the open file of the weights."""

    data: IO[bytes]
    form: Format
    seed: int = 0
    opset: int = 21
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    prefix: str = ""

    @property
    def float_type(self) -> int:
        return TYPES[self.form.activations]

    @property
    def float_numpy(self) -> type:
        return np.float16 if self.form.activations == "f16" else np.float32

    def node(
        self, op: str, *inputs: str, result: str = "", domain: str = "", **attrs: object
    ) -> str:
        return self.several(op, *inputs, results=(result,), domain=domain, **attrs)[0]

    def several(
        self, op: str, *inputs: str, results: tuple[str, ...], domain: str = "", **attrs: object
    ) -> list[str]:
        """A node with named results: an empty name is made up, "-" leaves the result out."""
        stem = f"{self.prefix}/{op}_{len(self.nodes)}"
        names = [n or f"{stem}/output_{i}" for i, n in enumerate(results)]
        names = ["" if n == "-" else n for n in names]
        self.nodes.append(helper.make_node(op, list(inputs), names, stem, domain=domain, **attrs))
        return names

    def input(self, name: str, dtype: int, dims: list[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def output(self, name: str, dtype: int, dims: list[int | str]) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    # Tensors

    def raw(self, name: str, content: Array, dtype: int, dims: tuple[int, ...]) -> str:
        if name in self.tensors:
            return name
        proto = TensorProto(name=name, data_type=dtype, dims=dims)
        if content.nbytes < INLINE:
            proto.raw_data = content.tobytes()
        else:
            self.data.write(b"\0" * (-self.data.tell() % 64))
            proto.data_location = TensorProto.EXTERNAL
            places = {"location": Path(self.data.name).name, "offset": self.data.tell()}
            for key, value in {**places, "length": content.nbytes}.items():
                proto.external_data.add(key=key, value=str(value))
            self.data.write(content.reshape(-1).view(np.uint8).data)
        self.tensors[name] = proto
        return name

    def tensor(self, name: str, array: Array) -> str:
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        return self.raw(name, np.ascontiguousarray(array), dtype, array.shape)

    def ints(self, *values: int) -> str:
        return self.tensor(f"ints_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def integer(self, value: int) -> str:
        return self.tensor(f"int_{value}", np.array(value, np.int64))

    def number(self, value: float) -> str:
        return self.tensor(f"number_{value!r}", np.array(value, self.float_numpy))

    def vector(self, name: str, size: int, mean: float, deviation: float) -> str:
        rng = np.random.default_rng([self.seed, *name.encode()])
        data = mean + deviation * rng.standard_normal(size)
        return self.tensor(name, data.astype(self.float_numpy))

    # Products

    def linear(
        self, x: str, name: str, inputs: int, outputs: dict[str, int],
        gain: dict[str, float] | None = None, bias: bool = False, head: bool = False,
        result: str = "",
    ) -> str:  # fmt: skip
        """x times the matrices of these names, side by side."""
        form = self.form.of_head() if head else self.form
        made = []
        for part, size in outputs.items():
            deviation = (gain or {}).get(part, 1.0) / np.sqrt(inputs)
            drawn = draw(self.seed, f"{name}.{part}", (size, inputs), deviation, form)
            made.append(drawn)
        matrix = joined(made) if len(made) > 1 else made[0]
        stem = f"{name}.{'qkv_proj' if len(made) > 1 else next(iter(outputs))}"
        last = "" if bias else result
        y = self._product(x, f"{stem}.MatMul.weight", matrix, form, last)
        if not bias:
            return y
        offsets = [
            np.random.default_rng([self.seed, *f"{name}.{part}.bias".encode()]).normal(size=n) / 4
            for part, n in outputs.items()
        ]
        b = self.tensor(f"{stem}.Add.bias", np.concatenate(offsets).astype(self.float_numpy))
        return self.node("Add", y, b, result=result)

    def _product(self, x: str, name: str, matrix: Matrix, form: Format, result: str) -> str:
        if form.plain or not form.quantised:
            real = matrix.codes if matrix.scales is None else matrix.real()
            w = self.tensor(name, turned(real, self.float_numpy))
            return self.node("MatMul", x, w, result=result)
        if form.nbits:
            return self._nbits(x, name, matrix, form, result)
        w = self._dequantised(name, matrix, form)
        return self.node("MatMul", x, w, result=result)

    def _nbits(self, x: str, name: str, matrix: Matrix, form: Format, result: str) -> str:
        packed, scales, zeros = for_nbits(matrix, form.block)
        bits = 4 if form.kind == "int4" else 8
        operands = [x, self.tensor(f"{name}_Q{bits}", packed)]
        operands.append(self.tensor(f"{name}_scales", scales))
        if zeros is not None:
            operands.append(self.tensor(f"{name}_zp", zeros))
        return self.node(
            "MatMulNBits", *operands, result=result, domain=MICROSOFT, K=matrix.inputs,
            N=matrix.outputs, bits=bits, block_size=form.block, accuracy_level=form.accuracy,
        )  # fmt: skip

    def _dequantised(self, name: str, matrix: Matrix, form: Format) -> str:
        """Codes [K, N] through DequantizeLinear, a scale for each column or block of it."""
        scales = matrix.scales
        assert scales is not None
        operands = [self._codes(f"{name}_codes", matrix.codes.T, matrix)]
        blocked = form.block > 0
        operands.append(self.tensor(f"{name}_scales", scales.T if blocked else scales[:, 0]))
        if matrix.zeros is not None:
            zeros = matrix.zeros.T if blocked else matrix.zeros[:, 0]
            operands.append(self._codes(f"{name}_zp", zeros, matrix))
        attrs: dict[str, Any] = {"axis": 0, "block_size": form.block} if blocked else {"axis": 1}
        return self.node("DequantizeLinear", *operands, **attrs)

    def _codes(self, name: str, codes: Array, matrix: Matrix) -> str:
        if matrix.kind == "int8":
            return self.tensor(name, codes)
        kind = "uint4" if matrix.kind == "int4" and matrix.zeros is not None else matrix.kind
        dtype, bits = _CODES[kind]
        flat = np.ascontiguousarray(codes).view(np.uint8).reshape(-1)
        content = flat if bits == 8 else packed_bits(flat & 15, 4)
        return self.raw(name, content, dtype, codes.shape)

    def embedding(self, name: str, ids: str, size: int, width: int, deviation: float) -> str:
        """A row of a table for each id."""
        form = self.form
        if not form.embedding:
            real = Format(form.activations, activations=form.activations)
            table = draw(self.seed, name, (size, width), deviation, real).codes
            return self.node(
                "Gather", self.tensor(name, table.astype(self.float_numpy, copy=False)), ids
            )
        block = form.block or 32
        of_table = Format("int4", block, form.zero_points, activations=form.activations)
        matrix = draw(self.seed, name, (size, width), deviation, of_table)
        if form.plain:
            return self.node(
                "Gather", self.tensor(name, matrix.real().astype(self.float_numpy)), ids
            )
        packed, scales, zeros = for_nbits(matrix, block)
        operands = [self.tensor(f"{name}_Q4", packed.reshape(size, -1)), ids]
        operands.append(self.tensor(f"{name}_scales", scales))
        if zeros is not None:
            operands.append(self.tensor(f"{name}_zp", zeros))
        return self.node(
            "GatherBlockQuantized", *operands, domain=MICROSOFT, bits=4, block_size=block,
            gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def table(self, name: str, rows: int, width: int, deviation: float) -> str:
        data = draw(self.seed, name, (rows, width), deviation, Format()).codes
        return self.tensor(name, data.astype(self.float_numpy))

    # Graphs

    def branch(self, prefix: str) -> Writer:
        """A writer of a graph inside this one: the tensors are shared."""
        return Writer(self.data, self.form, self.seed, self.opset, [], self.tensors, prefix=prefix)

    def graph(self, name: str, tensors: bool = False) -> onnx.GraphProto:
        held = list(self.tensors.values()) if tensors else []
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, held)

    def model(self) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        ir = 10 if self.opset < 23 else 11
        return helper.make_model(
            self.graph("main_graph", tensors=True), opset_imports=imports, ir_version=ir,
            producer_name="decoders",
        )  # fmt: skip
