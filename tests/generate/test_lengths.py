"""Forms in which exports use the length of their past: the step gives their tokens, or none.

A window that is counted from the wrong place hides keys which the export sees: tokens are wrong and
nothing else tells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.decoders import build
from onnx import TensorProto, helper, numpy_helper

from monograph import Generator
from monograph.errors import ExecutionError, FeedError, ModelError, UnsupportedError
from tests.generate.decoders import CONTEXT, MASKS, counting_decoder, plainly

PROMPT = [5, 9, 2, 33, 14]
KNOWN = [name for name in MASKS if name != "from behind"]


def opened(model: Path, target: str = "reference", **options: Any) -> Generator:
    return Generator(model, target, **{"max_length": 40, "stop": (), "cache_dir": "", **options})


@pytest.mark.parametrize("window", [4, CONTEXT])
@pytest.mark.parametrize("mask", KNOWN)
def test_windows_are_those_of_the_export(mask: str, window: int, tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", mask=mask, window=window, positions=True)
    expected = plainly(model, PROMPT, 20)
    assert opened(model).generate(PROMPT, 20) == expected
    assert opened(model, buckets=[2]).generate(PROMPT, 20) == expected
    if window == CONTEXT:
        return
    wide = counting_decoder(tmp_path / "wide.onnx", mask=mask, window=CONTEXT, positions=True)
    assert plainly(wide, PROMPT, 20) != expected  # the window hides something


@pytest.mark.parametrize("mask", ["buffer", "band", "sliced"])
def test_windows_on_the_cpu(mask: str, tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", mask=mask, window=4)
    generator = opened(model, "cpu")
    assert generator.generate(PROMPT, 12) == plainly(model, PROMPT, 12)
    assert generator.session.stats["host_steps"] == []


@pytest.mark.parametrize("mask", [name for name in KNOWN if name != "placed"])
def test_rows_of_unequal_lengths_have_their_own_windows(mask: str, tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", mask=mask, window=4, positions=True)
    prompts = [PROMPT, PROMPT[:2]]
    assert opened(model).generate(prompts, 12) == [plainly(model, p, 12) for p in prompts]


def test_keys_by_rows_and_queries_by_positions_take_rows_of_one_length(tmp_path: Path) -> None:
    """Padding in front moves keys, and not positions: no mask could be right."""
    model = counting_decoder(tmp_path / "m.onnx", mask="placed", window=4, positions=True)
    generator = opened(model)
    with pytest.raises(FeedError, match="sequences of a batch must be equally long"):
        generator.generate([PROMPT, PROMPT[:2]], 3)
    both = [PROMPT, PROMPT[::-1]]
    assert generator.generate(both, 12) == [plainly(model, p, 12) for p in both]


@pytest.mark.parametrize(
    "changes", [{"offset": 2}, {"bias": True}, {"bias": True, "mask": "band", "window": 4}]
)
def test_numbers_that_are_counted_up(changes: dict[str, Any], tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", **changes)
    assert opened(model).generate(PROMPT, 20) == plainly(model, PROMPT, 20)


def test_a_mask_that_cannot_be_told_the_position_is_refused(tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", mask="from behind", window=4)
    with pytest.raises(UnsupportedError, match="makes something of the length of its past"):
        opened(model)


def test_rows_that_are_cut_by_the_past_in_other_ways_are_refused(tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx")
    made = onnx.load(model)
    cut = next(n for n in made.graph.node if n.name == "rows")
    cut.input[2] = next(n.input[1] for n in made.graph.node if n.name == "mask")  # up to 0
    onnx.save(made, model)
    with pytest.raises(UnsupportedError, match="uses the length of the past"):
        opened(model)


@pytest.mark.parametrize("changes", [{}, {"positions": True}, {"mask": "band"}])
def test_more_than_a_table_of_positions_has(changes: dict[str, Any], tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", **changes)
    with pytest.raises(ModelError, match="more than the decoder has positions for") as caught:
        opened(model, max_length=CONTEXT + 1)
    assert f"max_length={CONTEXT}" in str(caught.value)
    # Unless told, and where no configuration tells, it is what the tables have.
    generator = opened(model, max_length=None)
    assert generator.max_length == CONTEXT
    assert len(generator.generate(PROMPT)) == CONTEXT - len(PROMPT)
    # More cannot be had there, and nobody is told to ask for it.
    limit = f"the decoder has positions for {CONTEXT} tokens"
    with pytest.raises(ExecutionError, match="the maximum length is reached") as full:
        generator.generate_next_token()
    assert str(full.value.hint).endswith(f"; {limit}")
    with pytest.raises(FeedError, match="the prompt is longer") as long:
        generator.generate([1] * CONTEXT, 1)
    assert long.value.hint == f"shorten the prompt: {limit}"
    assert opened(model, max_length=CONTEXT - 1).more_room().endswith("with more max_length")


def unfolded(path: Path, kind: str) -> Path:
    """The same decoder with its small whole numbers as nodes, as exporters that fold nothing do."""
    model = onnx.load(path)
    graph = model.graph
    nodes: list[onnx.NodeProto] = []
    for tensor in [t for t in graph.initializer if t.data_type == TensorProto.INT64]:
        data = numpy_helper.to_array(tensor)
        if data.size > 8:
            continue
        graph.initializer.remove(tensor)
        inner = f"{tensor.name}.inner"
        if kind == "attribute":
            plain = {"value_ints": data.tolist()} if data.ndim else {"value_int": int(data)}
            nodes.append(helper.make_node("Constant", [], [tensor.name], **plain))
        elif kind == "identity":
            nodes.append(helper.make_node("Constant", [], [inner], value=tensor))
            nodes.append(helper.make_node("Identity", [inner], [tensor.name]))
        else:  # made of another, by an op
            half = numpy_helper.from_array(data - 1, inner)
            graph.initializer.append(half)
            one = numpy_helper.from_array(np.array(1), f"{inner}.one")
            graph.initializer.append(one)
            nodes.append(helper.make_node("Add", [inner, one.name], [tensor.name]))
    assert nodes
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", ["attribute", "identity", "computed"])
@pytest.mark.parametrize("mask", ["buffer", "band", "sliced"])
def test_numbers_that_were_not_folded(kind: str, mask: str, tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "m.onnx", mask=mask, window=4)
    expected = plainly(model, PROMPT, 20)
    assert opened(unfolded(model, kind)).generate(PROMPT, 20) == expected


def two_angles(folder: Path, short: int) -> Path:
    """A decoder of genai's builder with other angles for contexts that are longer than some."""
    path = folder / "model.onnx"
    model = onnx.load(path)
    graph = model.graph
    names = ("cos_cache", "sin_cache")
    shape: list[int] = []
    for name in names:
        tensor = next(t for t in graph.initializer if t.name == name)
        data = numpy_helper.to_array(tensor)
        tensor.name, shape = f"{name}.short", list(data.shape)
        graph.initializer.append(numpy_helper.from_array(data[::-1].copy(), f"{name}.long"))
    graph.initializer.append(numpy_helper.from_array(np.array(1), "axis.of.mask"))
    graph.initializer.append(numpy_helper.from_array(np.array(short), "short"))

    def branch(which: str) -> onnx.GraphProto:
        made = [f"{name}.{which}.chosen" for name in names]
        return helper.make_graph(
            [
                helper.make_node("Identity", [f"{n}.{which}"], [m])
                for n, m in zip(names, made, strict=True)
            ],
            which,
            [],
            [helper.make_tensor_value_info(m, TensorProto.FLOAT, shape) for m in made],
        )

    nodes = [
        helper.make_node("Shape", ["attention_mask"], ["shape.of.mask"]),
        helper.make_node("Gather", ["shape.of.mask", "axis.of.mask"], ["context"]),
        helper.make_node("Greater", ["context", "short"], ["is.long"]),
        helper.make_node(
            "If", ["is.long"], [*names], then_branch=branch("long"), else_branch=branch("short")
        ),
    ]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    onnx.save(model, path)
    return folder


def test_angles_that_the_context_decides(tmp_path: Path) -> None:
    """A step has one context, its maximum: where that would change the angles, it is refused."""
    folder = two_angles(build(tmp_path, "tiny-llama", style="genai"), short=32)
    expected = plainly(folder / "model.onnx", PROMPT, 12)
    assert opened(folder, max_length=24).generate(PROMPT, 12) == expected
    with pytest.raises(UnsupportedError, match="makes something of the length of its past"):
        opened(folder, max_length=64)
