"""Every op of every opset has a converter or a body, up to the newest that ONNX knows."""

from __future__ import annotations

import pytest
from onnx import defs

from monograph.frontend.onnx.functions import has_schema_function
from monograph.frontend.onnx.node import find_converter, registered

FIRST = 7
NEWEST = defs.onnx_opset_version()
ML = "ai.onnx.ml"
NEWEST_ML = max(s.since_version for s in defs.get_all_schemas_with_history() if s.domain == ML)

WITHOUT: dict[str, str] = {}
"""Ops of the default domain that nothing converts, each with the reason."""


def ops_at(domain: str, opset: int) -> list[str]:
    """The ops that a model of this opset may use."""
    names = {s.name for s in defs.get_all_schemas_with_history() if s.domain == domain}
    found = []
    for name in sorted(names):
        try:
            schema = defs.get_schema(name, opset, domain)
        except defs.SchemaError:
            continue
        if not schema.deprecated:
            found.append(name)
    return found


def missing(domain: str, opset: int) -> list[str]:
    return [
        name
        for name in ops_at(domain, opset)
        if find_converter(domain, name, opset) is None
        and not has_schema_function(domain, name, opset)
    ]


@pytest.mark.parametrize("opset", range(FIRST, NEWEST + 1))
def test_every_op_of_the_default_domain_is_converted(opset: int) -> None:
    assert set(missing("", opset)) <= set(WITHOUT), f"opset {opset}"


@pytest.mark.parametrize("opset", range(1, NEWEST_ML + 1))
def test_every_op_of_the_ml_domain_is_converted(opset: int) -> None:
    assert set(missing(ML, opset)) == set(), f"opset {opset}"


def test_an_exception_is_one_in_some_opset() -> None:
    lacking = {name for opset in range(FIRST, NEWEST + 1) for name in missing("", opset)}
    assert lacking == set(WITHOUT)


def test_deprecated_ops_that_models_still_use_are_converted() -> None:
    for name in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
        assert find_converter(ML, name, NEWEST_ML) is not None
    for name in ("Upsample", "Scatter"):
        assert find_converter("", name, 9) is not None


def test_converters_are_of_ops_that_exist() -> None:
    known = {(s.domain, s.name) for s in defs.get_all_schemas_with_history()}
    # Exporters put this one into the default domain, though ONNX does not have it.
    known.add(("", "SimplifiedLayerNormalization"))
    assert {key for key in registered() if key[0] in ("", ML)} <= known
