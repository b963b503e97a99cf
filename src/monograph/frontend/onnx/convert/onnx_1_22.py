"""Changes by ONNX releases after 1.21 to ops that another family converts.

New ops that ONNX defines by a function body (LinearAttention, CausalConvWithState, SwiGLU,
FlexAttention) are inlined and need no code here. This module converts Attention from opset 24 on,
whose text was clarified later: with a cache that the model keeps, the last query is aligned with
the last valid key. Opset 23 was corrected in place, so the installed ONNX decides its meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from monograph.frontend.onnx.convert.attention import (
    attend,
    attention_as_published,
    both,
    merge_heads,
    padded,
    repeated,
    shares,
    split_heads,
    within,
)
from monograph.frontend.onnx.convert.common import cast, scalar
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import iota, size_value
from monograph.ir import Value, constant
from monograph.ir.dtype import boolean
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.attention import LENGTHS, Attention, usual_scale
from monograph.ops.linear import Dot


@converter("Mod", since=28)
def mod(n: Node) -> Value:
    """Convert Mod; floats may take the sign of the divisor too."""
    return ew.Mod(truncated=n.attr_flag("fmod"))(n.input(0), n.input(1))


@dataclass(frozen=True)
class _Reach:
    """The keys that a query may see, by position; `offset` is the position of the first query."""

    offset: Value
    causal: bool
    left: int
    right: int

    def mask(self, queries: Value, keys: Value) -> Value | None:
        """Return bool[..., S, T], or None if every key is visible."""
        place = ew.Add()(sh.Unsqueeze((1,))(iota(queries)), self.offset)
        key = sh.Unsqueeze((0,))(iota(keys))
        found: list[Value] = []
        if self.causal:
            found.append(ew.LessEqual()(key, place))
        if self.left >= 0:
            found.append(ew.LessEqual()(ew.Sub()(place, scalar(self.left, place)), key))
        if self.right >= 0:
            found.append(ew.LessEqual()(key, ew.Add()(place, scalar(self.right, place))))
        result: Value | None = None
        for condition in found:
            result = condition if result is None else ew.And()(result, condition)
        return result


def softcap_comes_first() -> bool:
    """Return True if the installed ONNX applies the softcap before a float mask (since 1.22)."""
    release = re.findall(r"\d+", onnx.__version__)
    return (int(release[0]), int(release[1])) >= (1, 22)


@converter("Attention", since=23)
def first_attention(n: Node) -> Value | Sequence[Value | None]:
    """Convert Attention of opset 23 as the installed ONNX defines it.

    A model does not say which text its author read. Before 1.22 a float mask was added before the
    softcap, and the scores of modes 1 and 2 were swapped.
    """
    return attention(n) if softcap_comes_first() else attention_as_published(n)


@converter("Attention", since=24)
def attention(n: Node) -> tuple[Value | None, ...]:
    q, k, v = n.input(0), n.input(1), n.input(2)
    flat = q.tensor.rank == 3
    if flat:
        q = split_heads(n, q, n.attr_int("q_num_heads"))
        k, v = (split_heads(n, x, n.attr_int("kv_num_heads")) for x in (k, v))
    past_k, past_v, lengths = n.optional(4), n.optional(5), n.optional(6)
    if (past_k is None) != (past_v is None):
        n.fail("a past of keys or of values is missing")
    aligned = lengths is not None or q.tensor.dim(2) == k.tensor.dim(2)
    offset = constant(0)
    if past_k is not None and past_v is not None:
        k, v = sh.Concat(2)(past_k, k), sh.Concat(2)(past_v, v)
        offset = size_value(past_k, 2)
    elif lengths is not None:
        offset = sh.Unsqueeze((1, 2, 3))(ew.Sub()(lengths, size_value(q, 2)))
    reach = _Reach(
        offset,
        n.attr_flag("is_causal"),
        n.attr_int("left_window_size", -1),
        n.attr_int("right_window_size", -1),
    )
    mask = padded(n.optional(3), k, lengths is not None)
    op = Attention(n.attr_float("scale", 0.0) or None, softcap=n.attr_float("softcap", 0.0))
    seen = reach.mask(size_value(q, 2), size_value(k, 2))
    hidden = mask if seen is None else both(mask, seen, q)
    if aligned and reach.causal:
        # The op itself aligns the last query with the last valid key.
        op = replace(op, causal=True, window=max(reach.left + 1, 0))
        y = attend(q, k, v, op, mask, **{LENGTHS: lengths})
    else:
        y = attend(q, k, v, op, hidden, **{LENGTHS: lengths})
    scores: Value | None = None
    if n.wants(3):
        if lengths is not None:
            hidden = both(hidden, within(size_value(k, 2), lengths), q)
        scores = _scores(n, q, repeated(n, k, q), hidden, op)
    return merge_heads(y) if flat else y, k, v, scores


def _scores(n: Node, q: Value, k: Value, mask: Value | None, op: Attention) -> Value:
    """Return the scores at the step that `qk_matmul_output_mode` selects."""
    mode = n.attr_int("qk_matmul_output_mode", 0)
    size = q.tensor.dim(3)
    if not 0 <= mode <= 3:
        n.fail("qk_matmul_output_mode must be 0, 1, 2 or 3", given=mode)
    if not isinstance(size, int):
        n.undecided("the scores of attention need a known head size", given=q.type)
    scale = usual_scale(size) if op.scale is None else op.scale
    scores = Dot()(ew.Mul()(q, scalar(scale, q)), sh.Transpose((0, 1, 3, 2))(k))
    if mode >= 1 and op.softcap > 0:
        cap = scalar(op.softcap, q)
        scores = ew.Mul()(ew.Tanh()(ew.Div()(scores, cap)), cap)
    if mode >= 2 and mask is not None:
        if mask.dtype == boolean:
            scores = ew.Where()(mask, scores, scalar(-math.inf, q))
        else:
            scores = ew.Add()(scores, mask)
    if mode < 3:
        return scores
    precise = cast(scores, n.attr_dtype("softmax_precision", q.dtype))
    return cast(shares(precise), q.dtype)
