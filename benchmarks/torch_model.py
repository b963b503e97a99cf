"""An ONNX model as a torch module: what a peer of the GPU benchmarks runs.

    model = TorchModel(onnx.load(path), inputs, torch.float16)
    outputs = model(*inputs)

Every node becomes a line of Python, as somebody who knows torch would write it: SiLU, GELU, biased
layers and attention are single calls, convolutions are channels-last. What depends on constants
only, shapes included, is computed while the module is built. `source` shows the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

Attributes = dict[str, Any]


@dataclass(frozen=True)
class Held:
    """A value: as it is for the inputs that were given, and its name in the source."""

    data: torch.Tensor
    name: str = ""
    """"" for a constant."""


@dataclass
class Line:
    """One assignment, the names it makes and those it reads."""

    text: str
    makes: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass
class Writer:
    """Writes lines and runs each at once, so that shapes are known."""

    owner: torch.nn.Module
    float_type: torch.dtype
    device: torch.device
    values: dict[str, Held] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    space: dict[str, Any] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)

    def constant(self, data: torch.Tensor) -> Held:
        kind = self.float_type if data.is_floating_point() else data.dtype
        return Held(data.to(self.device, kind))

    def text(self, held: Held) -> str:
        """The name of a value; a constant becomes a buffer of the module."""
        if held.name:
            return held.name
        if id(held.data) not in self.buffers:
            name = f"w{len(self.buffers)}"
            data = held.data
            if data.ndim == 4:
                data = data.contiguous(memory_format=torch.channels_last)
            self.owner.register_buffer(name, data, persistent=False)
            self.buffers[id(held.data)] = f"self.{name}"
            self.values[f"buffer {name}"] = held  # keeps its identity alive
        return self.buffers[id(held.data)]

    def call(self, form: str, inputs: Sequence[Held], count: int = 1) -> list[Held]:
        """Results of an expression with {0}, {1} ... for inputs."""
        if inputs and not any(h.name for h in inputs):
            made = eval(form.format(*(f"x[{i}]" for i in range(len(inputs)))), _SPACE, {
                "x": [h.data for h in inputs]
            })  # fmt: skip
            return [Held(d) for d in (made if count > 1 else [made])]
        start = len(self.space)
        names = tuple(f"t{start + i}" for i in range(count))
        texts = [self.text(h) for h in inputs]
        line = f"{', '.join(names)} = {form.format(*texts)}"
        scope = {"self": self.owner, **{h.name: h.data for h in inputs if h.name}}
        exec(line, _SPACE, scope)
        self.space |= dict.fromkeys(names)
        self.lines.append(Line(line, names, tuple(h.name for h in inputs if h.name)))
        return [Held(scope[n], n) for n in names]

    def numbers(self, name: str) -> list[Any]:
        """Return what a constant input holds, as Python numbers."""
        held = self.values[name]
        if held.name:
            raise NotImplementedError(f"{name} is not known before a run")
        found = held.data.reshape(-1).tolist()
        return [float(x) if isinstance(x, float) else int(x) for x in found]

    def maker(self, name: str, op: str) -> onnx.NodeProto | None:
        """The node behind a value, if it is of this kind."""
        node = self.makers.get(name)
        return node if node is not None and node.op_type == op else None


_SPACE = {"torch": torch, "F": functional, "inf": float("inf")}
Handler = Callable[[Writer, onnx.NodeProto, Attributes, list[Held]], list[Held]]


class TorchModel(torch.nn.Module):
    """The module of a model whose inputs have the shapes of those given."""

    def __init__(
        self, model: onnx.ModelProto, inputs: Sequence[torch.Tensor], float_type: torch.dtype
    ) -> None:
        super().__init__()
        device = inputs[0].device
        writer = Writer(self, float_type, device)
        for tensor in model.graph.initializer:
            writer.values[tensor.name] = writer.constant(_tensor(tensor))
        names = [i.name for i in model.graph.input if i.name not in writer.values]
        for number, (name, data) in enumerate(zip(names, inputs, strict=True)):
            kind = float_type if data.is_floating_point() else data.dtype
            writer.values[name] = Held(data.to(kind), f"x{number}")
        with torch.no_grad():
            for node in model.graph.node:
                _write(writer, node)
        results = [writer.values[o.name] for o in model.graph.output]
        texts = [writer.text(r) for r in results]
        kept = _needed(writer.lines, {r.name for r in results})
        heads = ", ".join(f"x{i}" for i in range(len(names)))
        body = [line.text for line in kept] + [f"return ({', '.join(texts)},)"]
        self.source = f"def forward(self, {heads}):\n    " + "\n    ".join(body) + "\n"
        scope: dict[str, Any] = {}
        exec(compile(self.source, "<torch model>", "exec"), dict(_SPACE), scope)
        self._forward = scope["forward"]
        for name in [n for n in self._buffers if f"self.{n}" not in self._used(body)]:
            del self._buffers[name]

    @staticmethod
    def _used(body: list[str]) -> set[str]:
        """The buffers that lines read: what was joined into others is not kept."""
        return set(re.findall(r"self\.w\d+", "\n".join(body)))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = self._forward(self, *inputs)
        return result


def _tensor(tensor: onnx.TensorProto) -> torch.Tensor:
    array = numpy_helper.to_array(tensor)
    return torch.from_numpy(np.array(array))


def _needed(lines: list[Line], wanted: set[str]) -> list[Line]:
    """The lines that results come from."""
    kept = []
    for line in reversed(lines):
        if wanted.intersection(line.makes):
            kept.append(line)
            wanted.update(line.reads)
    return kept[::-1]


def _write(w: Writer, node: onnx.NodeProto) -> None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [w.values[n] for n in node.input if n]
    handler = HANDLERS.get(node.op_type)
    if handler is None:
        raise NotImplementedError(f"the torch peer has no {node.op_type}")
    results = handler(w, node, attributes, inputs)
    for name, held in zip(node.output, results, strict=False):
        w.values[name] = held
        w.makers[name] = node


def _simple(form: str) -> Handler:
    return lambda w, node, a, x: w.call(form, x)


def _silu_or_mul(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    for one, other in (node.input, node.input[::-1]):
        gate = w.maker(other, "Sigmoid")
        if gate is not None and gate.input[0] == one:
            return w.call("F.silu({0})", [w.values[one]])
    inner = _gelu_input(w, node)
    return w.call("F.gelu({0})", [inner]) if inner else w.call("{0} * {1}", x)


def _gelu_input(w: Writer, node: onnx.NodeProto) -> Held | None:
    """x of Mul(Mul(x, Add(Erf(Div(x, sqrt 2)), 1)), 0.5)."""
    outer = w.maker(node.input[0], "Mul")
    total = w.maker(outer.input[1], "Add") if outer is not None else None
    erf = w.maker(total.input[0], "Erf") if total is not None else None
    scaled = w.maker(erf.input[0], "Div") if erf is not None else None
    if outer is None or scaled is None or scaled.input[0] != outer.input[0]:
        return None
    half, root = w.values[node.input[1]], w.values[scaled.input[1]]
    if half.name or root.name or abs(float(half.data) - 0.5) > 0:
        return None
    return w.values[outer.input[0]] if abs(float(root.data) - 2**0.5) < 1e-2 else None


def _add(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    """A sum; with a constant row behind a product, a layer."""
    product = w.maker(node.input[0], "MatMul")
    if product is not None and not x[1].name and x[1].data.ndim == 1:
        left, weight = (w.values[n] for n in product.input)
        if left.name and not weight.name and weight.data.ndim == 2:
            turned = w.call("{0}.t().contiguous()", [weight])[0]
            return w.call("F.linear({0}, {1}, {2})", [left, turned, x[1]])
    return w.call("{0} + {1}", x)


def _matmul(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    """A product; behind a softmax of scaled products, attention."""
    softmax = w.maker(node.input[0], "Softmax")
    scores = softmax.input[0] if softmax is not None else ""
    mask: list[Held] = []
    total = w.maker(scores, "Add")
    if total is not None and not w.values[total.input[1]].name:
        scores, mask = total.input[0], [w.values[total.input[1]]]
    scaled = w.maker(scores, "Mul")
    inner = w.maker(scaled.input[0], "MatMul") if scaled is not None else None
    if inner is None or scaled is None or w.values[scaled.input[1]].name:
        return w.call("torch.matmul({0}, {1})", x)
    scale = float(w.values[scaled.input[1]].data)
    q, k = (w.values[n] for n in inner.input)
    given = ", attn_mask={3}" if mask else ""
    form = f"F.scaled_dot_product_attention({{0}}, {{1}}.mT, {{2}}{given}, scale={scale})"
    return w.call(form, [q, k, x[1], *mask])


def _conv(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    pads = a.get("pads", [0, 0, 0, 0])
    rank = len(pads) // 2
    if pads[:rank] != pads[rank:]:
        raise NotImplementedError("uneven padding")
    bias = "{2}" if len(x) > 2 else "None"
    settings = (
        f"{list(a.get('strides', [1] * rank))}, {list(pads[:rank])},"
        f" {list(a.get('dilations', [1] * rank))}, {a.get('group', 1)}"
    )
    return w.call(f"F.conv2d({{0}}, {{1}}, {bias}, {settings})", x)


def _max_pool(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    pads = a.get("pads", [0, 0, 0, 0])
    strides = a.get("strides", [1, 1])
    return w.call(f"F.max_pool2d({{0}}, {a['kernel_shape']}, {strides}, {pads[:2]})", x)


def _resize(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    if a.get("mode", b"nearest") != b"nearest":
        raise NotImplementedError("only nearest sizes")
    last = w.numbers(node.input[-1])
    factors = last[2:] if len(node.input) == 3 else None
    if factors is None:
        factors = [s / o for s, o in zip(last[2:], x[0].data.shape[2:], strict=True)]
    form = f"F.interpolate({{0}}, scale_factor={[float(f) for f in factors]}, mode='nearest')"
    return w.call(form, x[:1])


def _softmax(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    return w.call(f"torch.softmax({{0}}, {a.get('axis', -1)})", x)


def _layer_norm(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    size, epsilon = x[0].data.shape[-1], a.get("epsilon", 1e-5)
    return w.call(f"F.layer_norm({{0}}, [{size}], {{1}}, {{2}}, {epsilon})", x)


def _rms_norm(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    size, epsilon = x[0].data.shape[-1], a.get("epsilon", 1e-5)
    return w.call(f"F.rms_norm({{0}}, [{size}], {{1}}, {epsilon})", x)


def _reshape(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    sizes = w.numbers(node.input[1])
    shape = [x[0].data.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return w.call(f"{{0}}.reshape({shape})", x[:1])


def _flatten(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    rows = int(np.prod(x[0].data.shape[: a.get("axis", 1)]))
    return w.call(f"{{0}}.reshape({rows}, -1)", x)


def _transpose(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    return w.call(f"{{0}}.permute({list(a['perm'])})", x)


def _concat(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    listed = ", ".join(f"{{{i}}}" for i in range(len(x)))
    return w.call(f"torch.cat([{listed}], {a['axis']})", x)


def _split(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    axis = a.get("axis", 0)
    sizes = w.numbers(node.input[1]) if len(node.input) > 1 else None
    if sizes is None:
        each = -(-x[0].data.shape[axis] // len(node.output))
        sizes = [each] * len(node.output)
    return w.call(f"torch.split({{0}}, {sizes}, {axis})", x[:1], len(node.output))


def _slice(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    starts, ends = (w.numbers(n) for n in node.input[1:3])
    axes = w.numbers(node.input[3]) if len(node.input) > 3 else list(range(len(starts)))
    steps = w.numbers(node.input[4]) if len(node.input) > 4 else [1] * len(starts)
    rank = x[0].data.ndim
    parts = [":"] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        last = min(end, x[0].data.shape[axis])
        parts[axis % rank] = f"{start}:{last}:{step}"
    return w.call(f"{{0}}[{', '.join(parts)}]", x[:1])


def _gather(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    axis = a.get("axis", 0)
    if not x[0].name and x[1].name and axis == 0:
        return w.call("F.embedding({1}, {0})", x)
    shape = [*x[0].data.shape[:axis], *x[1].data.shape, *x[0].data.shape[axis + 1 :]]
    return w.call(f"torch.index_select({{0}}, {axis}, {{1}}.reshape(-1)).reshape({shape})", x)


def _top_k(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    (count,) = w.numbers(node.input[1])
    largest = bool(a.get("largest", 1))
    return w.call(f"torch.topk({{0}}, {count}, {a.get('axis', -1)}, {largest})", x[:1], 2)


def _reduce(name: str) -> Handler:
    def handle(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
        given = w.numbers(node.input[1]) if len(node.input) > 1 else list(a.get("axes", ()))
        axes = given or list(range(x[0].data.ndim))
        return w.call(f"torch.{name}({{0}}, {axes}, {bool(a.get('keepdims', 1))})", x[:1])

    return handle


def _unsqueeze(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    axes = w.numbers(node.input[1])
    shape = list(x[0].data.shape)
    for axis in sorted(i % (len(shape) + len(axes)) for i in axes):
        shape.insert(axis, 1)
    return w.call(f"{{0}}.reshape({shape})", x[:1])


def _expand(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    shape = torch.broadcast_shapes(x[0].data.shape, w.numbers(node.input[1]))
    return w.call(f"{{0}}.expand({list(shape)})", x[:1])


def _gather_elements(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    return w.call(f"torch.gather({{0}}, {a.get('axis', 0)}, {{1}})", x)


def _cast(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    wanted = torch.from_numpy(np.zeros(1, helper.tensor_dtype_to_np_dtype(a["to"]))).dtype
    kind = w.float_type if wanted.is_floating_point else wanted
    return w.call(f"{{0}}.to({kind})", x)


def _constant(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    return [w.constant(_tensor(a["value"]))]


def _constant_of_shape(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    value = _tensor(a["value"]) if "value" in a else torch.zeros(1)
    return [w.constant(value.expand(w.numbers(node.input[0])).clone())]


def _shape(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    return [w.constant(torch.tensor(list(x[0].data.shape)))]


def _divide(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    whole = not x[0].data.is_floating_point()
    rounding = ", rounding_mode='trunc'" if whole else ""
    return w.call(f"torch.div({{0}}, {{1}}{rounding})", x)


def _pooled(w: Writer, node: onnx.NodeProto, a: Attributes, x: list[Held]) -> list[Held]:
    return w.call("{0}.mean([2, 3], True)", x)


HANDLERS: dict[str, Handler] = {
    "Add": _add,
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "Div": _divide,
    "Equal": _simple("torch.eq({0}, {1})"),
    "Erf": _simple("torch.erf({0})"),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GlobalAveragePool": _pooled,
    "HardSwish": _simple("F.hardswish({0})"),
    "Identity": lambda w, node, a, x: x,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mod": _simple("torch.remainder({0}, {1})"),
    "Mul": _silu_or_mul,
    "RMSNormalization": _rms_norm,
    "ReduceMax": _reduce("amax"),
    "ReduceMean": _reduce("mean"),
    "Relu": _simple("F.relu({0})"),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Sigmoid": _simple("torch.sigmoid({0})"),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sub": _simple("{0} - {1}"),
    "TopK": _top_k,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _simple("torch.where({0}, {1}, {2})"),
}
