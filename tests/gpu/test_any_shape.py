"""Code for any shape on a GPU, by Triton's interpreter: op samples and sessions at many sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest

import monograph
from monograph.config import Config
from monograph.errors import ConfigError, UnsupportedError
from monograph.ir import Graph
from monograph.ir.sizes import SizeScope
from monograph.ops import OPS
from monograph.program.legalise.lower_random import random_ops
from monograph.runtime.gpu.driver.devices import Interpreter
from monograph.runtime.gpu.target import GpuBackend
from monograph.runtime.progress import silent
from monograph.runtime.shape_code import ShapeCode
from tests.cpu.any_shape_cases import open_graph
from tests.cpu.test_any_shape import SHARED, network
from tests.gpu import gpu_models
from tests.samples import SEED, sample_graph

pytestmark = gpu_models.INTERPRETED
NAMES = [n for n, op in OPS.items() if op.samples]
SAMPLES = 3
"""The most samples of an op: the interpreter is slow."""
OTHERS = 2
"""Other sizes at which each sample runs."""


def backend() -> GpuBackend:
    config = Config(target="gpu:interpreter", cache_dir="", capture="off")
    return GpuBackend(config, Interpreter(checked=True), lambda graph: graph, silent)


def compiled(graph: Graph, scope: SizeScope) -> ShapeCode:
    return backend().compile_any_shape(graph, scope)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_right_at_every_size(name: str) -> None:
    rng = random.Random(f"{SEED} {name}")
    for number, sample in list(enumerate(OPS[name].samples))[:SAMPLES]:
        graph, feeds = sample_graph(OPS[name], sample)
        if random_ops(graph):
            continue
        try:
            found = open_graph(graph, lambda n, i: rng.random() < 0.8, compiled, least=2)
        except UnsupportedError:
            continue  # it is no single program of kernels: sessions compile exact code
        if found is None:
            continue
        assert found.code.bind({k: np.shape(x) for k, x in feeds.items()}) is not None
        assert found.problem(feeds) is None, f"seed {SEED}, sample {number}"
        others = (found.other_feeds(feeds, rng) for _ in range(30))
        for other in [f for f in others if f is not None][:OTHERS]:
            assert found.problem(other) is None, f"seed {SEED}, sample {number}"


def images(*shape: int) -> np.ndarray:
    draw = np.random.default_rng(sum(shape))
    return draw.normal(size=shape).astype(np.float32)


def loaded(**options: object) -> monograph.Session:
    options = {"target": "gpu:interpreter", "specialise": "off", "cache_dir": ""} | options
    return monograph.load(network(), **options)


def test_one_set_of_kernels_serves_all_sizes() -> None:
    session, counts = loaded(), []
    expected = monograph.load(network(), target="reference")
    for n, width in ((2, 40), (3, 37), (5, 48), (2, 16), (4, 129), (2, 40), (7, 33)):
        x = images(n, 3, 16, width)
        (given,), (wanted,) = session.run({"x": x}), expected.run({"x": x})
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
        counts.append(session.stats["compiled_kernels"])
    assert counts == [counts[0]] * len(counts), "no size needs another kernel"
    assert session.stats["variants"] == 1
    assert session.stats["exact_reason"] == ""


def test_sizes_0_and_1_are_variants_of_their_own() -> None:
    session = loaded()
    expected = monograph.load(network(), target="reference")
    for n, width in ((2, 40), (1, 40), (1, 33), (0, 40), (2, 20)):
        x = images(n, 3, 16, width)
        (given,), (wanted,) = session.run({"x": x}), expected.run({"x": x})
        assert given.shape == wanted.shape
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
    assert session.stats["variants"] == 3


def test_results_stay_valid_while_other_sizes_run() -> None:
    session = loaded()
    x, y = images(2, 3, 16, 24), images(6, 3, 16, 120)
    (first,) = session.run({"x": x})
    kept = first.copy()
    session.run({"x": y})
    np.testing.assert_array_equal(first, kept)
    (again,) = session.run({"x": x})
    np.testing.assert_array_equal(again, kept)


def test_every_size_has_the_arena_it_needs() -> None:
    session = loaded(checked=True)
    for width in (16, 200, 17, 120):
        session.run({"x": images(2, 3, 16, width)})


def test_an_architecture_without_a_device_compiles_for_known_sizes() -> None:
    with pytest.raises(ConfigError, match="needs a device"):
        monograph.load(network(), target="gpu:sm_90", specialise="off")


def test_a_package_of_code_for_any_shape_is_refused(tmp_path) -> None:
    session = loaded()
    session.run({"x": images(2, 3, 16, 24)})
    with pytest.raises(ConfigError, match="no code for any shape of a GPU"):
        session.save(tmp_path / "model.mono")


@pytest.mark.skipif(not SHARED.exists(), reason="the shared models are not there")
def test_a_transformer_runs_every_batch_and_length_by_one_set_of_kernels() -> None:
    path = SHARED / "hf_bert_sdpa" / "model.onnx"
    options = {"specialise": "off", "cache_dir": ""}
    session = monograph.load(path, target="gpu:interpreter", **options)
    expected = monograph.load(path, **options)
    draw, counts = np.random.default_rng(SEED), set()
    for shape in ((2, 24), (3, 17), (5, 2), (2, 64)):
        ids, mask = draw.integers(0, 1000, shape), np.ones(shape, np.int64)
        mask[:, shape[1] // 2 :] = 0
        feeds = {"input_ids": ids, "attention_mask": mask}
        (given,), (wanted,) = session.run(feeds), expected.run(feeds)
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
        counts.add(session.stats["compiled_kernels"])
    assert len(counts) == 1, "no length needs another kernel"
    assert session.stats["variants"] == 1


def test_ranges_are_estimated_once_for_all_sizes() -> None:
    session = loaded(precision="f16")
    expected = monograph.load(network(), target="reference")
    for n, width in ((2, 40), (3, 37), (5, 16)):
        x = images(n, 3, 16, width)
        (given,), (wanted,) = session.run({"x": x}), expected.run({"x": x})
        tolerance = 16 * 2.0**-11 * np.abs(wanted).max()
        np.testing.assert_allclose(given, wanted, atol=tolerance)
    assert session.stats["variants"] == 1
