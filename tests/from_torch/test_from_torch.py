"""`monograph.from_torch`: arguments and results are those of the module; errors say what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

import monograph
from monograph.errors import ConfigError, FeedError, ModelError

torch = pytest.importorskip("torch", reason="torch is not installed: run `make test-torch`")


class Structured(torch.nn.Module):
    """Takes tensors by name, and returns tensors, a size, a constant and None in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: Any, bias: Any, mask: Any = None, flip: bool = False) -> dict[str, Any]:
        y = self.linear(x) + bias
        if mask is not None:
            y = y * mask
        if flip:
            y = -y
        return {"y": y, "rows": 2 * x.shape[0], "same": x, "nothing": None, "name": "ours"}


def examples(batch: int = 2) -> dict[str, Any]:
    return {"x": torch.randn(batch, 4), "bias": torch.randn(3), "mask": torch.randn(batch, 1)}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    module = Structured().eval()
    batch = torch.export.Dim("batch")
    dynamic = {"x": {0: batch}, "bias": None, "mask": {0: batch}}
    return module, monograph.from_torch(module, examples(), dynamic_shapes=dynamic)


@pytest.mark.parametrize("batch", [2, 5, 1])
def test_results_have_the_modules_structure(pair: tuple[Any, Any], batch: int) -> None:
    module, model = pair
    given = examples(batch)
    ours, expected = model(**given), module(**given)
    assert list(ours) == list(expected)
    assert (ours["rows"], ours["nothing"], ours["name"]) == (2 * batch, None, "ours")
    assert type(ours["rows"]) is int
    torch.testing.assert_close(ours["y"], expected["y"])
    torch.testing.assert_close(ours["same"], given["x"])


def test_inputs_have_the_names_of_the_arguments_and_of_the_dimensions(
    pair: tuple[Any, Any],
) -> None:
    found = [str(port) for port in pair[1].session.inputs]
    assert found == ["x: f32[batch, 4]", "bias: f32[3]", "mask: f32[batch, 1]"]


def test_arguments_may_be_given_by_position(pair: tuple[Any, Any]) -> None:
    given = examples()
    by_name, by_place = pair[1](**given), pair[1](given["x"], given["bias"], mask=given["mask"])
    assert torch.equal(by_name["y"], by_place["y"])


def test_a_missing_argument_is_named(pair: tuple[Any, Any]) -> None:
    with pytest.raises(FeedError, match=r"expected: x, bias, mask\n  given: \[0\], \[1\]"):
        pair[1](torch.randn(2, 4), torch.randn(3))


def test_an_argument_that_the_module_lacks_is_refused(pair: tuple[Any, Any]) -> None:
    with pytest.raises(FeedError, match="unexpected keyword argument 'offset'"):
        pair[1](**examples(), offset=1)


def test_a_constant_argument_must_stay_what_it_was() -> None:
    module = Structured().eval()
    model = monograph.from_torch(module, {**examples(), "flip": True})
    given = examples()
    torch.testing.assert_close(model(**given, flip=True)["y"], module(**given, flip=True)["y"])
    with pytest.raises(FeedError, match=r"part of the compiled model\n  expected: True"):
        model(**given, flip=False)


def test_parameters_are_frozen() -> None:
    module = torch.nn.Linear(4, 3).eval()
    x = torch.randn(2, 4)
    model = monograph.from_torch(module, x)
    before = module(x).detach()
    with torch.no_grad():
        module.weight.zero_()
    torch.testing.assert_close(model(x), before)
    assert [p.name for p in model.session.inputs] == ["input"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types_are_kept(dtype: str) -> None:
    kind = getattr(torch, dtype)
    module = torch.nn.Linear(4, 3).to(kind).eval()
    x = torch.randn(2, 4).to(kind)
    found = monograph.from_torch(module, (x,))(x)
    assert found.dtype == kind
    torch.testing.assert_close(found, module(x).detach())


def test_strided_and_conjugated_tensors_are_read_as_they_are() -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.real + 2 * x.imag

    x = torch.randn(4, 3, dtype=torch.complex64)
    model = monograph.from_torch(Sum().eval(), torch.randn(3, 4, dtype=torch.complex64))
    torch.testing.assert_close(model(x.conj().T), Sum()(x.conj().T))


class Branches(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: torch.nn.BatchNorm1d(4), "writes to its inputs or buffers", "module.eval()"),
        (lambda: torch.nn.Dropout(), "draws random numbers", "module.eval()"),
        (lambda: Branches().eval(), "torch cannot export the module", "torch.compile"),
    ],
    ids=["buffers", "dropout", "branch on data"],
)
def test_a_module_that_cannot_be_compiled_says_why(make: Any, message: str, hint: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        monograph.from_torch(make(), torch.randn(3, 4))
    assert caught.value.hint is not None
    assert hint in caught.value.hint


class Sized(torch.nn.Module):
    """Takes a branch by a size."""

    def __init__(self, test: Any) -> None:
        super().__init__()
        self.test = test

    def forward(self, x: Any, y: Any) -> Any:
        return 100 * x if self.test(x.shape[0], y.shape[0]) else x + 1


@pytest.mark.parametrize(
    ("test", "open_size", "right", "wrong", "expected"),
    [
        (lambda n, m: n > 4, torch.export.Dim.AUTO, (4, 2), (9, 3), "x.size()[0] <= 4"),
        (lambda n, m: n % 2, torch.export.Dim.AUTO, (6, 3), (5, 3), "% 2"),
        (lambda n, m: n < 3, torch.export.Dim("n", min=3, max=8), (8, 3), (9, 3), "<= 8"),
        (lambda n, m: n == m, torch.export.Dim.AUTO, (6, 5), (5, 5), "y.size()[0]"),
    ],
    ids=["comparison", "remainder", "range", "two sizes"],
)
def test_sizes_of_another_branch_are_refused(
    test: Any, open_size: Any, right: tuple[int, int], wrong: tuple[int, int], expected: str
) -> None:
    module = Sized(test).eval()
    dynamic = {"x": {0: open_size}, "y": {0: torch.export.Dim.AUTO}}
    model = monograph.from_torch(module, (torch.ones(4, 2), torch.ones(3)), dynamic_shapes=dynamic)
    given = torch.randn(right[0], 2), torch.ones(right[1])
    torch.testing.assert_close(model(*given), module(*given))
    for _ in range(2):  # the answer is remembered
        with pytest.raises(FeedError, match="exported for other sizes") as caught:
            model(torch.ones(wrong[0], 2), torch.ones(wrong[1]))
        assert expected in str(caught.value)


def test_a_tensor_on_another_device_is_refused() -> None:
    model = monograph.from_torch(torch.nn.ReLU().eval(), torch.ones(2))
    with pytest.raises(FeedError, match=r"on the device meta\n.*\.to\(\"cpu\"\)"):
        model(torch.ones(2, device="meta"))


@pytest.mark.parametrize(
    ("module", "given", "message"),
    [
        (torch.relu, torch.ones(2), "must be a torch.nn.Module"),
        (torch.nn.ReLU(), 3, "`example_inputs` must be a tensor, a tuple"),
        (torch.nn.ReLU(), {1: torch.ones(2)}, "maps names of arguments"),
    ],
)
def test_wrong_arguments_are_refused(module: Any, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        monograph.from_torch(module, given)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such option"):
        monograph.from_torch(torch.nn.ReLU(), torch.ones(2), thread=2)
