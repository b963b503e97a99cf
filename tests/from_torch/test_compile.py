"""`torch.compile(model, backend="monograph")`: results, counts, and reasons to run eagerly."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from monograph.errors import ConfigError

torch = pytest.importorskip("torch", reason="torch is not installed: run `make test-torch`")


def compiled(module: Any, **given: Any) -> Any:
    return torch.compile(module, backend="monograph", **given)


def counted() -> dict[str, Any]:
    from monograph.compat.torch.counters import stats

    return stats()


class Net(torch.nn.Module):
    """Returns a computed tensor, a view of the input, the input, a size and None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(4, 4), 2.5

    def forward(self, x: Any, shift: Any) -> tuple[Any, ...]:
        return self.linear(x) * self.scale + shift, x.view(-1), x, x.shape[0] * 2, None


def same(given: Any, expected: Any) -> None:
    for ours, theirs in zip(given, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert (ours, type(ours)) == (theirs, type(theirs))


@pytest.mark.parametrize("dynamic", [None, True, False])
@torch.no_grad()
def test_sizes_and_numbers_may_change(dynamic: bool | None) -> None:
    module = Net()
    model = compiled(module, dynamic=dynamic)
    for batch, shift in ((3, 2), (5, 2), (6, 4), (2, 9)):
        x = torch.randn(batch, 4)
        same(model(x, shift), module(x, shift))
    assert counted()["eager_runs"] == 0
    assert counted()["runs"] == 4
    if dynamic:
        assert counted()["exports"] == 1


@torch.no_grad()
def test_results_that_are_views_of_inputs_stay_views() -> None:
    x = torch.randn(3, 4)
    _, view, itself, *_ = compiled(Net())(x, 1)
    view.zero_()
    assert itself is x
    assert x.abs().max() == 0


@torch.no_grad()
def test_a_changed_parameter_is_seen() -> None:
    module, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    model = compiled(module)
    model(x)
    module.weight.mul_(2)
    same([model(x)], [module(x)])
    module.load_state_dict(torch.nn.Linear(4, 3).state_dict())
    same([model(x)], [module(x)])
    assert counted()["exports"] == 3
    model(x)
    assert counted()["exports"] == 3


@torch.no_grad()
def test_equal_layers_have_their_own_parameters() -> None:
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    x = torch.randn(2, 4)

    def apply(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x

    same([compiled(apply)(x)], [apply(x)])
    assert counted()["graph_breaks"] >= 1
    assert counted()["eager_runs"] == 0


def test_inference_mode_works() -> None:
    module = torch.nn.Linear(4, 3)
    with torch.inference_mode():
        x = torch.randn(2, 4)
        same([compiled(module)(x)], [module(x)])
    assert counted()["runs"] == 1


def test_gradients_run_eagerly_and_are_right(caplog: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Linear(4, 3)
    model = compiled(module)
    with caplog.at_level(logging.WARNING, "monograph"):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    torch.testing.assert_close(module.bias.grad, torch.full((3,), 6.0))
    told = [r.message for r in caplog.records if r.name == "monograph"]
    assert len(told) == 1, "the reason is logged once"
    assert "call the model in torch.no_grad()" in told[0]
    assert counted()["eager_runs"] == 3


def _draw(x: Any) -> Any:
    return x * torch.rand(3)


def _write(x: Any) -> Any:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    ("function", "reason"), [(_draw, "draws random numbers"), (_write, "writes to its inputs")]
)
@torch.no_grad()
def test_what_cannot_be_compiled_runs_eagerly_with_its_reason(function: Any, reason: str) -> None:
    x, y = torch.ones(3), torch.ones(3)
    torch.manual_seed(1)
    ours = compiled(function)(x)
    torch.manual_seed(1)
    same([ours, x], [function(y), y])
    (told,) = counted()["eager_reasons"]
    assert reason in told


def _base_and_view(x: Any) -> Any:
    y = x * 2
    row = y[0]
    torch._dynamo.graph_break()
    row.zero_()
    return y


def _overlapping_views(x: Any) -> Any:
    y = x * 2
    first, last = y[:-1], y[1:]
    torch._dynamo.graph_break()
    first.fill_(7)
    return last


def _written_before(x: Any) -> Any:
    y = torch.nn.functional.elu(x * 2, 1.0, True)
    row = y[0]
    y += 1
    torch._dynamo.graph_break()
    row.zero_()
    return y


def _detached(x: Any) -> Any:
    y = (x * 2).T
    other = y.detach()
    torch._dynamo.graph_break()
    other[0] = 5
    return y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("function", "eager"),
    [
        (_base_and_view, False),
        (_overlapping_views, False),
        (_written_before, True),
        (_detached, False),
    ],
)
@torch.no_grad()
def test_results_that_share_memory_still_do(
    function: Any, eager: bool, dynamic: bool | None
) -> None:
    model = compiled(function, dynamic=dynamic)
    for rows in (4, 5):
        x = torch.randn(rows, 6)
        same([model(x.clone())], [function(x.clone())])
    told = [r for r in counted()["eager_reasons"] if "share memory" in r]
    assert bool(told) == eager


@torch.no_grad()
def test_a_run_that_fails_leaves_the_graph_compiled() -> None:
    module = torch.nn.Embedding(10, 4)
    model = compiled(module)
    same([model(torch.tensor([1]))], [module(torch.tensor([1]))])
    with pytest.raises(IndexError):
        model(torch.tensor([11]))
    same([model(torch.tensor([2]))], [module(torch.tensor([2]))])
    assert (counted()["runs"], counted()["eager_runs"]) == (2, 1)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_the_fused_encoder_layer_is_compiled(activation: str, norm_first: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 32, activation=activation, norm_first=norm_first, batch_first=True
    )
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(compiled(module)(x), module(x), rtol=1e-4, atol=1e-5)
    assert counted()["eager_runs"] == 0


@torch.no_grad()
def test_the_reason_names_the_op_that_has_no_converter() -> None:
    compiled(lambda x: torch.linalg.svd(x)[1])(torch.randn(3, 3))
    (told,) = counted()["eager_reasons"]
    assert "aten._linalg_svd" in told


@torch.no_grad()
def test_graph_breaks_are_counted_and_both_sides_compiled() -> None:
    def branch(x: Any) -> Any:
        y = x * 3
        return torch.relu(y) + 1 if y.sum() > 0 else y - 1

    model = compiled(branch)
    for x in (torch.ones(3), -torch.ones(3)):
        same([model(x)], [branch(x)])
    assert counted()["graph_breaks"] == 1
    (reason,) = counted()["graph_break_reasons"]
    assert "branching" in reason
    assert counted()["eager_runs"] == 0


@torch.no_grad()
def test_options_are_those_of_load() -> None:
    x = torch.randn(2, 4)
    module = torch.nn.Linear(4, 3)
    same([compiled(module, options={"target": "reference"})(x)], [module(x)])
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no such option") as caught:
        compiled(module, options={"thread": 1})(x)
    assert isinstance(caught.value.__cause__ or caught.value, ConfigError | Exception)
