"""Models that read backwards through views, each with what numpy makes of its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser

Array = np.ndarray


@dataclass(frozen=True)
class Backwards:
    """One model of an input x and an output y."""

    name: str
    shape: tuple[int, ...]
    body: str
    expected: Callable[[Array], Array]
    rank: int = 1

    def model(self) -> onnx.ModelProto:
        sizes = ", ".join(map(str, self.shape))
        shown = ", ".join(f"d{k}" for k in range(self.rank))
        return onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["" : 21]>\n'
            f"g (float[{sizes}] x) => (float[{shown}] y) {{ {self.body} }}"
        )

    def feeds(self) -> dict[str, Array]:
        return {"x": np.arange(np.prod(self.shape), dtype=np.float32).reshape(self.shape) + 1}


def _ints(name: str, *numbers: int) -> str:
    return f"{name} = Constant <value_ints = {list(numbers)}> () "


def _backwards(of: str, axis: int = 0, step: int = -1, out: str = "y") -> str:
    """of[..., ::step, ...] along an axis."""
    start, stop, steps, axes = (f"{out}_{n}" for n in ("start", "stop", "steps", "axes"))
    least = -(2**62)
    return (
        f"{_ints(start, 2**62)} {_ints(stop, least)} {_ints(axes, axis)} {_ints(steps, step)}"
        f"{out} = Slice ({of}, {start}, {stop}, {axes}, {steps})"
    )


def _flat(of: str, out: str = "flat") -> str:
    return f"{_ints(out + '_shape', -1)} {out} = Reshape ({of}, {out}_shape) "


def _space_to_depth(x: Array, block: int) -> Array:
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block * block, h // block, w // block)


def _conv_transpose(x: Array) -> Array:
    """Kernel and stride of 2, one channel, weights 1 2 3 4."""
    weights = np.array([[1, 2], [3, 4]], np.float32)
    return np.einsum("hw,ab->hawb", x[0, 0], weights).reshape(-1)


MODELS = (
    Backwards(
        "transpose_reshape",
        (3, 2),
        f"t = Transpose <perm = [1, 0]> (x) {_flat('t')} {_backwards('flat')}",
        lambda x: x.T.reshape(-1)[::-1],
    ),
    Backwards(
        "transpose_reshape_every_other",
        (3, 4, 5),
        f"t = Transpose <perm = [2, 0, 1]> (x) {_flat('t')} {_backwards('flat', step=-2)}",
        lambda x: x.transpose(2, 0, 1).reshape(-1)[::-2],
    ),
    Backwards(
        "tile",
        (3,),
        f"{_ints('n', 2)} t = Tile (x, n) {_backwards('t')}",
        lambda x: np.tile(x, 2)[::-1],
    ),
    Backwards(
        "tile_of_rows",
        (3, 5),
        f"{_ints('n', 2, 3)} t = Tile (x, n) {_backwards('t', out='b')} "
        f"{_backwards('b', 1, step=-2)}",
        lambda x: np.tile(x, (2, 3))[::-1, ::-2],
        2,
    ),
    Backwards(
        "reshape_odd",
        (4, 17, 16),
        f"{_flat('x')} {_backwards('flat')}",
        lambda x: x.reshape(-1)[::-1],
    ),
    Backwards(
        "reshape_odd_behind_work",
        (4, 17, 16),
        f"m = Neg (x) t = Transpose <perm = [0, 2, 1]> (m) {_flat('t')} "
        f"{_backwards('flat', out='b')} y = Abs (b)",
        lambda x: np.abs(-x).transpose(0, 2, 1).reshape(-1)[::-1],
    ),
    Backwards(
        "flatten_cumsum",
        (5, 7),
        "axis = Constant <value_int = 1> () t = Transpose <perm = [1, 0]> (x) "
        "f = Flatten <axis = 0> (t) y = CumSum <reverse = 1> (f, axis)",
        lambda x: x.T.reshape(1, -1)[:, ::-1].cumsum(1)[:, ::-1],
        2,
    ),
    Backwards(
        "flatten_cumsum_exclusive",
        (4, 3, 2),
        "axis = Constant <value_int = 1> () t = Transpose <perm = [0, 2, 1]> (x) "
        "f = Flatten <axis = 0> (t) y = CumSum <reverse = 1, exclusive = 1> (f, axis)",
        lambda x: (
            x.transpose(0, 2, 1).reshape(1, -1)[:, ::-1].cumsum(1)[:, ::-1]
            - x.transpose(0, 2, 1).reshape(1, -1)
        ),
        2,
    ),
    Backwards(
        "space_to_depth",
        (1, 2, 4, 6),
        f"s = SpaceToDepth <blocksize = 2> (x) {_flat('s')} {_backwards('flat')}",
        lambda x: _space_to_depth(x, 2).reshape(-1)[::-1],
    ),
    Backwards(
        "space_to_depth_channels",
        (1, 2, 4, 6),
        f"s = SpaceToDepth <blocksize = 2> (x) {_backwards('s', 1)}",
        lambda x: _space_to_depth(x, 2)[:, ::-1],
        4,
    ),
    Backwards(
        "nearest_resize",
        (1, 1, 3, 5),
        "scales = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () "
        "r = Resize <mode = 'nearest', coordinate_transformation_mode = 'asymmetric', "
        f"nearest_mode = 'floor'> (x, , scales) {_backwards('r', 3, out='b')} "
        f"{_flat('b')} {_backwards('flat', step=-3)}".replace("'", '"'),
        lambda x: x.repeat(2, 2).repeat(2, 3)[..., ::-1].reshape(-1)[::-3],
    ),
    Backwards(
        "channel_shuffle",
        (1, 6, 2, 3),
        f"{_ints('split', 1, 2, 3, 2, 3)} {_ints('back', 1, 6, 2, 3)} a = Reshape (x, split) "
        f"t = Transpose <perm = [0, 2, 1, 3, 4]> (a) s = Reshape (t, back) {_backwards('s', 1)}",
        lambda x: x.reshape(1, 2, 3, 2, 3).transpose(0, 2, 1, 3, 4).reshape(1, 6, 2, 3)[:, ::-1],
        4,
    ),
    Backwards(
        "expand",
        (3, 1),
        f"{_ints('wide', 3, 4)} e = Expand (x, wide) {_flat('e')} {_backwards('flat')}",
        lambda x: np.broadcast_to(x, (3, 4)).reshape(-1)[::-1],
    ),
    Backwards(
        "conv_transpose",
        (1, 1, 3, 4),
        "w = Constant <value = float[1, 1, 2, 2] {1, 2, 3, 4}> () "
        f"c = ConvTranspose <strides = [2, 2]> (x, w) {_flat('c')} {_backwards('flat')}",
        lambda x: _conv_transpose(x)[::-1],
    ),
    Backwards(
        "concat_of_reshaped",
        (3, 4),
        f"t = Transpose <perm = [1, 0]> (x) {_flat('t', 'a')} {_flat('x', 'b')} "
        f"c = Concat <axis = 0> (a, b, a) {_backwards('c')}",
        lambda x: np.concatenate([x.T.reshape(-1), x.reshape(-1), x.T.reshape(-1)])[::-1],
    ),
    Backwards(
        "concat_of_reversed",
        (3, 4),
        f"t = Transpose <perm = [1, 0]> (x) {_flat('t', 'a')} {_backwards('a', out='p')} "
        f"{_flat('x', 'b')} {_backwards('b', step=-5, out='q')} y = Concat <axis = 0> (p, q)",
        lambda x: np.concatenate([x.T.reshape(-1)[::-1], x.reshape(-1)[::-5]]),
    ),
    Backwards(
        "sum_of_reversed",
        (4, 6),
        f"t = Transpose <perm = [1, 0]> (x) {_flat('t')} {_backwards('flat', out='b')} "
        f"{_ints('two', 8, 3)} r = Reshape (b, two) {_ints('axes', 1)} "
        "y = ReduceSum <keepdims = 0> (r, axes)",
        lambda x: x.T.reshape(-1)[::-1].reshape(8, 3).sum(1),
    ),
)
