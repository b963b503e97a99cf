"""run: feeds, outputs, errors."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

ONE, TWO = np.array([1, 2], np.float32), np.array([3, 5], np.float32)


@pytest.fixture
def square(ort: Any) -> Any:
    return ort.InferenceSession(models.square())


@pytest.fixture
def two(ort: Any) -> Any:
    return ort.InferenceSession(models.two_inputs())


@pytest.mark.parametrize("names", [None, [], ()])
def test_all_outputs(two: Any, names: Any) -> None:
    found = two.run(names, {"A": ONE, "B": TWO})
    assert isinstance(found, list)
    assert [x.tolist() for x in found] == [[4, 7], [-2, -3]]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Y"], [[4, 7]]),
        (["Z"], [[-2, -3]]),
        (["Z", "Y"], [[-2, -3], [4, 7]]),
        (("Z",), [[-2, -3]]),
        (["Y", "Y"], [[4, 7], [4, 7]]),
    ],
)
def test_named_outputs(two: Any, names: Any, expected: Any) -> None:
    assert [x.tolist() for x in two.run(names, {"A": ONE, "B": TWO})] == expected


def test_keyword_arguments(two: Any, ort: Any) -> None:
    found = two.run(
        output_names=["Y"], input_feed={"A": ONE, "B": TWO}, run_options=ort.RunOptions()
    )
    assert found[0].tolist() == [4, 7]


def test_outputs_are_fresh(square: Any) -> None:
    (first,) = square.run(None, {"X": X})
    (second,) = square.run(None, {"X": X * 2})
    assert first[0].tolist() == [1, 4]
    assert second[0].tolist() == [4, 16]
    first[:] = 0  # an output can be written to
    assert second[0].tolist() == [4, 16]


def test_feeds_are_not_changed(square: Any) -> None:
    given = X.copy()
    square.run(None, {"X": given})
    assert given.tolist() == X.tolist()


def test_missing_input(square: Any) -> None:
    with pytest.raises(ValueError, match=r"Required inputs \(\['X'\]\) are missing"):
        square.run(None, {})


def test_one_missing_input_of_two(two: Any) -> None:
    with pytest.raises(ValueError, match=r"Required inputs \(\['B'\]\) are missing"):
        two.run(None, {"A": ONE})


def test_unknown_input(square: Any, state: Any) -> None:
    with pytest.raises(state.InvalidArgument, match="Invalid input name: W"):
        square.run(None, {"X": X, "W": X})


def test_unknown_output(square: Any, state: Any) -> None:
    with pytest.raises(state.InvalidArgument, match="Invalid output name:Q"):
        square.run(["Q"], {"X": X})


def test_outputs_as_one_text(square: Any) -> None:
    with pytest.raises(TypeError):
        square.run("Y", {"X": X})


def test_feeds_as_a_list(square: Any) -> None:
    with pytest.raises(AttributeError):
        square.run(None, [X])


@pytest.mark.parametrize(("kind", "name"), [(np.float64, "double"), (np.int64, "int64")])
def test_other_element_type(square: Any, state: Any, kind: Any, name: str) -> None:
    with pytest.raises(state.InvalidArgument) as raised:
        square.run(None, {"X": X.astype(kind)})
    assert f"Actual: (tensor({name})) , expected: (tensor(float))" in str(raised.value)
    assert str(raised.value).startswith("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : ")


def test_other_rank(square: Any, state: Any) -> None:
    with pytest.raises(state.InvalidArgument, match="Invalid rank for input: X Got: 1 Expected: 2"):
        square.run(None, {"X": X[0]})


def test_other_sizes(square: Any, state: Any) -> None:
    with pytest.raises(state.InvalidArgument) as raised:
        square.run(None, {"X": np.ones((4, 3), np.float32)})
    text = str(raised.value)
    assert "Got invalid dimensions for input: X for the following indices" in text
    assert " index: 0 Got: 4 Expected: 3\n index: 1 Got: 3 Expected: 2" in text


def test_session_works_after_an_error(square: Any, state: Any) -> None:
    with pytest.raises(state.InvalidArgument):
        square.run(None, {"X": X[0]})
    assert square.run(None, {"X": X})[0][0].tolist() == [1, 4]


def test_lists(square: Any) -> None:
    (found,) = square.run(None, {"X": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    assert (found.dtype, found[2].tolist()) == (np.float32, [25.0, 36.0])


def test_lists_of_arrays(square: Any) -> None:
    assert square.run(None, {"X": list(X)})[0][0].tolist() == [1, 4]


def test_lists_of_truth_values(ort: Any) -> None:
    session = ort.InferenceSession(models.identity(models.BOOL))
    assert session.run(None, {"X": [True, False]})[0].tolist() == [True, False]


def test_lists_of_integers(ort: Any) -> None:
    (found,) = ort.InferenceSession(models.identity(models.INT64)).run(None, {"X": [3, 4]})
    assert (found.dtype, found.tolist()) == (np.int64, [3, 4])


@pytest.mark.parametrize("given", [1.0, np.float32(1), object()])
def test_numbers_are_no_arrays(square: Any, given: Any) -> None:
    with pytest.raises(RuntimeError):
        square.run(None, {"X": given})


def test_a_text_is_no_array(square: Any) -> None:
    with pytest.raises(RuntimeError, match="single numpy array for input 'X'"):
        square.run(None, {"X": "abc"})


def test_none_is_no_array(square: Any, state: Any) -> None:
    with pytest.raises(state.Fail):
        square.run(None, {"X": None})


def test_strided_feeds(square: Any) -> None:
    (found,) = square.run(None, {"X": np.ascontiguousarray(X.T).T})
    assert found.tolist() == (X * X).tolist()
    (found,) = square.run(None, {"X": X[::-1]})
    assert found[0].tolist() == [25, 36]


def test_read_only_feeds(square: Any) -> None:
    given = X.copy()
    given.flags.writeable = False
    assert square.run(None, {"X": given})[0][0].tolist() == [1, 4]


def test_open_sizes(ort: Any) -> None:
    session = ort.InferenceSession(models.open_sizes())
    for sizes in ((1, 2, 4), (3, 1, 4), (1, 2, 4)):
        y, z = session.run(None, {"X": np.ones(sizes, np.float32)})
        assert (y.shape, z.shape, float(z.sum())) == (sizes, sizes, -float(np.prod(sizes)))


def test_no_rows(ort: Any) -> None:
    session = ort.InferenceSession(models.open_sizes())
    y, _ = session.run(None, {"X": np.ones((0, 2, 4), np.float32)})
    assert (y.shape, y.dtype) == ((0, 2, 4), np.float32)


def test_default_of_an_input(ort: Any) -> None:
    session = ort.InferenceSession(models.with_default())
    zero = np.zeros(2, np.float32)
    assert session.run(None, {"X": zero})[0].tolist() == [1, 2]
    assert session.run(None, {"X": zero, "W": ONE * 4})[0].tolist() == [4, 8]
    assert session.run(None, {"X": zero})[0].tolist() == [1, 2]


NUMBERS = ["UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "UINT32", "UINT64", "FLOAT16",
           "DOUBLE", "FLOAT"]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_element_types_pass_through(ort: Any, name: str) -> None:
    element = getattr(onnx.TensorProto, name)
    given = np.array([1, 3], onnx.helper.tensor_dtype_to_np_dtype(element))
    (found,) = ort.InferenceSession(models.identity(element)).run(None, {"X": given})
    assert (found.dtype, found.tolist()) == (given.dtype, [1, 3])


def test_scalars_are_arrays(ort: Any) -> None:
    session = ort.InferenceSession(models.identity(models.INT64, ()))
    (found,) = session.run(None, {"X": np.array(7)})
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.item()) == ((), 7)


@pytest.mark.parametrize(
    "given",
    [
        np.array(["a", "bc"]),
        np.array(["a", "bc"], object),
        np.array(["a", "bc"], np.dtypes.StringDType()).astype(object),
    ],
)
def test_texts(ort: Any, given: Any) -> None:
    (found,) = ort.InferenceSession(models.identity(models.STRING)).run(None, {"X": given})
    assert (found.dtype, found.tolist()) == (object, ["a", "bc"])


def test_texts_beyond_ascii(ort: Any) -> None:
    session = ort.InferenceSession(models.identity(models.STRING))
    assert session.run(None, {"X": np.array(["Čau", "水"])})[0].tolist() == ["Čau", "水"]


def test_objects_become_texts(ort: Any) -> None:
    session = ort.InferenceSession(models.identity(models.STRING))
    assert session.run(None, {"X": np.array(["a", 3], object)})[0].tolist() == ["a", "3"]


def test_sequence_as_an_input(ort: Any) -> None:
    session = ort.InferenceSession(models.element_of_sequence())
    (found,) = session.run(None, {"S": [ONE, TWO], "i": np.array(1)})
    assert found.tolist() == [3, 5]


def test_sequence_as_an_output(ort: Any) -> None:
    (found,) = ort.InferenceSession(models.to_sequence()).run(None, {"A": ONE, "B": TWO})
    assert isinstance(found, list)
    assert [x.tolist() for x in found] == [[1, 2], [3, 5]]


def test_maps_as_an_output(ort: Any) -> None:
    given = np.array([[0.25, 0.75], [1, 0]], np.float32)
    (found,) = ort.InferenceSession(models.zipmap()).run(None, {"X": given})
    assert found == [{10: 0.25, 20: 0.75}, {10: 1.0, 20: 0.0}]


@pytest.mark.parametrize(("feeds", "expected"), [({"O": None}, False), ({}, False)])
def test_optional_without_a_value(ort: Any, feeds: Any, expected: bool) -> None:
    (found,) = ort.InferenceSession(models.has_element()).run(None, feeds)
    assert found.tolist() is expected


def test_optional_with_a_value(ort: Any) -> None:
    (found,) = ort.InferenceSession(models.has_element()).run(None, {"O": ONE})
    assert found.tolist() is True


def test_index_out_of_range(ort: Any, state: Any) -> None:
    session = ort.InferenceSession(models.gather())
    with pytest.raises(state.InvalidArgument):
        session.run(None, {"X": np.ones(3, np.float32), "i": np.array([9])})
    (found,) = session.run(None, {"X": np.arange(3, dtype=np.float32), "i": np.array([2, -3])})
    assert found.tolist() == [2, 0]


def test_seed_of_random_ops(ort: Any) -> None:
    def draw() -> list[float]:
        ort.set_seed(3)
        return ort.InferenceSession(models.random_normal()).run(None, {})[0].tolist()

    assert draw() == draw()


def test_terminate(ort: Any, state: Any, square: Any) -> None:
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(state.Fail, match="terminate flag"):
        square.run(None, {"X": X}, options)
    options.terminate = False
    assert square.run(None, {"X": X}, options)[0].shape == (3, 2)


def test_run_options_of_another_type(square: Any) -> None:
    with pytest.raises(TypeError):
        square.run(None, {"X": X}, 3)


def test_runs_from_several_threads(square: Any) -> None:
    wrong: list[Any] = []

    def work(scale: int) -> None:
        for _ in range(20):
            (found,) = square.run(None, {"X": X * scale})
            if found.tolist() != (X * X * scale * scale).tolist():
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def run_async(session: Any, feeds: Any, data: Any = None) -> tuple[Any, ...]:
    done, found = threading.Event(), []

    def callback(results: Any, user_data: Any, problem: str) -> None:
        found.append((results, user_data, problem))
        done.set()

    session.run_async(["Y"], feeds, callback, data)
    assert done.wait(30)
    return found[0]


def test_asynchronous_run(square: Any) -> None:
    marker = object()
    results, data, problem = run_async(square, {"X": X}, marker)
    assert (results[0].tolist(), problem) == ((X * X).tolist(), "")
    assert data is marker


def test_error_of_an_asynchronous_run(square: Any) -> None:
    results, _, problem = run_async(square, {"X": X[0]})
    assert (list(results), problem[:27]) == ([], "Invalid rank for input: X G")


def test_missing_input_of_an_asynchronous_run(square: Any) -> None:
    with pytest.raises(ValueError, match=r"Required inputs \(\['X'\]\) are missing"):
        square.run_async(None, {}, lambda *_: None, None)
