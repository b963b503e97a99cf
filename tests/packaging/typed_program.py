"""A program of a user, which a strict type checker reads against the installed package."""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np

import monograph
import monograph.onnxruntime as ort
from monograph import Generator, Session, errors
from monograph.config import Config


def detect(path: str, batch: int) -> Sequence[Any]:
    try:
        with monograph.load(path, target="cpu", dims={"batch": batch}, threads=2) as session:
            assert_type(session, Session)
            assert_type(session.config, Config)
            assert_type(session.stats, dict[str, Any])
            for port in (*session.inputs, *session.outputs):
                assert_type(port.name, str)
            feeds = {session.inputs[0].name: np.zeros((batch, 3, 64, 64), np.float32)}
            pending = session.run_async(feeds)
            pending.result(timeout=10.0)
            return session.run(feeds, outputs=[session.outputs[0].name])
    except errors.MonographError as e:
        assert_type(e.hint, str | None)
        raise


def tell(folder: str) -> None:
    generator = Generator(folder, target="cpu", max_length=128, temperature=0.8)
    assert_type(generator.stop_tokens, tuple[int, ...])
    for piece in generator.stream([1, 2, 3], max_new_tokens=8):
        print(piece)


def detect_as_before(path: str) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {port.name: np.zeros((1, 3, 64, 64), np.float32) for port in session.get_inputs()}
    return session.run(None, feeds)


assert_type(monograph.__version__, str)
