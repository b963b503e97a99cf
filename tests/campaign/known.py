"""The table of documented differences: see `tests.campaign.differences`.

Versions are those of ONNX Runtime that were seen to behave so: 1.30 and 1.31.
"""

from __future__ import annotations

import numpy as np

from tests.campaign.differences import Seen, difference

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin",
)  # fmt: skip
POOLS = ("AveragePool", "MaxPool", "LpPool")


# What Monograph documents ----------------------------------------------------------------------


@difference("denormals are zeros inside native functions", side="any")
def flushed(s: Seen) -> bool:
    a, b = np.asarray(s.given), np.asarray(s.expected)
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype not in (np.float32, np.float64):
        return False
    differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    tiny = np.finfo(a.dtype).tiny
    return bool(np.all(a[differ] == 0) and np.all(np.abs(b[differ]) < tiny))


# What the standard leaves open ------------------------------------------------------------------


@difference("stash_type: norms of f64 compute their statistics in f32, as their attribute says;"
            " the reference computes in f64")  # fmt: skip
def stashed(s: Seen) -> bool:
    ops = ("LayerNormalization", "GroupNormalization", "RMSNormalization",
           "SimplifiedLayerNormalization")  # fmt: skip
    wide = np.asarray(s.expected).dtype == np.float64
    return wide and s.has(*ops) and s.close(1e-5)


@difference("the mean of no elements: NaN in the reference and in numpy, 0 in ONNX Runtime")
def mean_of_nothing(s: Seen) -> bool:
    return s.has("ReduceMean") and s.empty and bool(np.isnan(np.asarray(s.expected)).any())


@difference("transforms and determinants mix a NaN or an infinity with all elements, some of them"
            " multiplied by 0; which results they reach is not specified", side="any")  # fmt: skip
def mixing(s: Seen) -> bool:
    return s.has("DFT", "STFT", "Det", "DeformConv", "RoiAlign") and s.only_special


@difference("numbers that overflow between two steps of one op: the reference rounds in between,"
            " compiled code and ONNX Runtime keep f32", side="any")  # fmt: skip
def overflow_between(s: Seen) -> bool:
    narrow = any(x.dtype.itemsize == 2 and x.dtype.kind in "fV" for x in s.arrays)
    return narrow and s.has("Gemm", "Attention", "LayerNormalization") and s.only_special


@difference("an infinity times 0 in a product of several operands: the order of the products"
            " decides whether they meet")  # fmt: skip
def product_order(s: Seen) -> bool:
    return s.unusual and s.has("Einsum")


@difference("what a quantiser makes of NaN and infinities is not specified")
def quantised_nan(s: Seen) -> bool:
    ops = ("DynamicQuantizeMatMul", "DynamicQuantizeLinear", "QuantizeLinear")
    return s.unusual and s.has(*ops)


@difference("halves: ONNX Runtime computes some chains in f32 without rounding in between; what"
            " becomes a bool or an index, or goes through a steep function, shows it")  # fmt: skip
def unrounded_halves(s: Seen) -> bool:
    if not any(x.dtype == np.float16 for x in s.arrays):
        return False
    kind = np.asarray(s.expected).dtype
    steep = s.has("Tan") and len(s.nodes) > 1 and kind == np.float16
    ties = s.has("ArgMax", "ArgMin", "TopK") and len(s.nodes) > 1 and kind.kind == "i"
    cut = s.has("Cast") and len(s.nodes) > 1 and kind.kind in "iu" and s.near(1)  # 0.9999 is 0
    return steep or ties or cut or (s.has("Cast") and kind.kind == "b")


@difference("an infinity times a weight of 0 in Resize: ONNX Runtime leaves such terms out, or the"
            " reference does")  # fmt: skip
def resized_infinity(s: Seen) -> bool:
    return s.unusual and s.has("Resize", "GridSample")


# What ONNX Runtime does otherwise ---------------------------------------------------------------


@difference("a reduction of a tensor without elements keeps sizes in ONNX Runtime that it should"
            " reduce to 1")  # fmt: skip
def empty_reduction(s: Seen) -> bool:
    return s.has(*REDUCTIONS) and s.empty and np.shape(s.given) != np.shape(s.expected)


@difference("NonZero of a scalar is [0, N] in the standard, [1, N] in ONNX Runtime")
def scalar_non_zero(s: Seen) -> bool:
    sizes = np.shape(s.expected)[:1], np.shape(s.given)[:1]
    return s.has("NonZero") and sizes == ((0,), (1,))


@difference("auto_pad of a pool with dilations: ONNX Runtime pads as if there were none")
def dilated_pool(s: Seen) -> bool:
    spread = any(max(d) > 1 for d in s.attribute("dilations"))
    return s.has(*POOLS) and spread and any(b"SAME" in a for a in s.attribute("auto_pad"))


@difference("ConvTranspose with auto_pad SAME and a kernel smaller than its stride: the size is"
            " input times stride in the standard, and smaller in ONNX Runtime")  # fmt: skip
def small_kernel(s: Seen) -> bool:
    same = any(b"SAME" in a for a in s.attribute("auto_pad"))
    return s.has("ConvTranspose") and same and np.shape(s.given) != np.shape(s.expected)


@difference("an interpolated integer is cut off, so that rounding of its weights shows as 1")
def interpolated_integer(s: Seen) -> bool:
    integers = np.asarray(s.expected).dtype.kind in "iu"
    return integers and s.has("Resize") and b"nearest" not in s.attribute("mode") and s.near(1)


@difference("DFT and STFT: ONNX Runtime's factors are less precise than the type")
def imprecise_transform(s: Seen) -> bool:
    wide = np.asarray(s.expected).dtype == np.float64
    return s.has("DFT", "STFT") and s.close(1e-10 if wide else 1e-4)


@difference(
    "functions of ONNX Runtime by approximations: good to 1e-10 in f64, to a unit of 1 in f32"
)
def approximated(s: Seen) -> bool:
    named = {a for given in s.attribute("activations") for a in given}
    inside = s.has("RNN", "GRU", "LSTM") and (not named or bool(named & {b"Tanh", b"Sigmoid"}))
    if not inside and not s.has("Sigmoid", "Tanh", "Erf", "Softplus", "Gelu"):
        return False
    kind = np.asarray(s.expected).dtype
    return s.close(1e-10) if kind == np.float64 else kind == np.float32 and s.near(2.0**-23)


@difference("ONNX Runtime ends the process over some operands without elements", sorts=("crash",))
def empty_crash(s: Seen) -> bool:
    return s.has("Einsum", *POOLS) and s.empty
