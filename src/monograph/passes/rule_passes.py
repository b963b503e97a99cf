"""The passes that only apply rules, one class for each set of rules.

The docstring of a class summarises the equations; the rules themselves are in `rules/`.
`pipeline.py` states the order.
"""

from __future__ import annotations

from monograph.passes.base import RulePass
from monograph.rewrite import rules_in
from monograph.rules import (
    arithmetic,
    casts,
    commute,
    concat,
    convolution,
    lookup,
    norms,
    quantised,
    recognise_activation,
    recognise_attention,
    recognise_rope,
    recognise_softmax,
    scales,
    sizes,
    slices,
    views,
)

EXTREMES = (arithmetic.max_of_rearranged, arithmetic.min_of_rearranged)
"""Rules for reductions of views, which belong to `CollapseViews`."""


class FoldZeroPoints(RulePass):
    """dot(s * (x - z), t * W) -> (s * t) * (dot(x, W) - z * sum(W)), and convolutions alike.

    It runs first, because constant folding turns small quantised weights into floats.
    """

    rules = rules_in(quantised)


class FoldSizes(RulePass):
    """shape(x) -> constant; deferred op with known attributes -> plain op; no-op cast(x) -> x"""

    rules = (*rules_in(sizes), *rules_in(casts))


class Simplify(RulePass):
    """x + 0 -> x; x * 1 -> x; -(-x) -> x; x / k -> x * (1 / k); nested clips -> one clip"""

    rules = tuple(r for r in rules_in(arithmetic) if r not in EXTREMES)


class RecogniseAttention(RulePass):
    """softmax(q k^T * scale + mask) v -> attention; x * cos + rotate(x) * sin -> rope

    It runs before the passes that move scales and views, because they hide these patterns.
    """

    rules = (*rules_in(recognise_rope), *rules_in(recognise_attention))


class CollapseViews(RulePass):
    """A chain of views, slices, concats and casts -> the shortest chain with the same result.

    Views move down behind elementwise ops, concats and dots until they meet other views. Slices
    move up to slices that they merge with. concat(slices of x) -> x.
    """

    rules = (
        *rules_in(sizes),
        *rules_in(casts),
        *rules_in(views),
        *rules_in(slices),
        *rules_in(concat),
        *EXTREMES,
        *commute.SINKING,
    )


class RecogniseLookups(RulePass):
    """dot(one_hot(i), W) -> W[i]"""

    rules = rules_in(lookup)


class FoldScales(RulePass):
    """conv(x, W) * k -> conv(x, W k), and dots alike; conv(pad(x), W) -> conv(x, W) that pads"""

    rules = rules_in(scales)


class ComposeConvs(RulePass):
    """conv(conv(x, W) + b, V) -> conv(x, V W) + V b, for a 1x1 V, where it is faster"""

    rules = (convolution.compose_pointwise,)


class RecogniseNorms(RulePass):
    """The arithmetic of softmax, LayerNorm and RMSNorm -> one op with scale and bias.

    It runs after the rules that match the arithmetic.
    """

    rules = (
        *rules_in(recognise_softmax),
        *(r for r in rules_in(norms) if r is not norms.norm_scale_into_dot),
    )


class HoistConvs(RulePass):
    """conv(concat(resize(x), y), [V W]) -> resize(conv(x, V)) + conv(y, W), for a 1x1 kernel"""

    rules = (convolution.convolve_before_resize,)


class RecogniseActivations(RulePass):
    """x * sigmoid(x) -> silu(x); the arithmetic of GELU -> gelu(x)

    It runs after the rules that match the arithmetic.
    """

    rules = rules_in(recognise_activation)


class FoldNorms(RulePass):
    """dot(rms_norm(x, g), W) -> dot(rms_norm(x), g W), where products normalise their rows"""

    rules = (norms.norm_scale_into_dot,)


class FuseDotRows(RulePass):
    """dot([B, S, K], [K, N]) -> dot([B*S, K], [K, N]), with the elementwise ops after it.

    It runs last, because `CollapseViews` undoes it.
    """

    rules = (views.merge_reshapes, views.drop_reshape, *commute.FLATTENING)
