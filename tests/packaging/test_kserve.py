"""The manifests of KServe fit its Python models. `make test-kserve` installs kserve."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "kserve"


def manifest_of(kind: str) -> dict[str, Any]:
    """The manifest of a kind."""
    found = [yaml.safe_load(file.read_text()) for file in FOLDER.glob("*.yaml")]
    return next(m for m in found if m["kind"] == kind)


def problems(value: Any, kind: str, place: str) -> list[str]:
    """The errors of a value as a kind of KServe's or Kubernetes' Python models."""
    import kserve.models
    import kubernetes.client

    if found := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{place}: a list is wanted"]
        return [p for i, v in enumerate(value) for p in problems(v, found[1], f"{place}[{i}]")]
    if found := re.fullmatch(r"dict\((.*), (.*)\)", kind):
        if not isinstance(value, dict):
            return [f"{place}: an object is wanted"]
        return [p for k, v in value.items() for p in problems(v, found[2], f"{place}.{k}")]
    plain = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
    if kind in plain:
        right = isinstance(value, plain[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if right or kind == "object" else [f"{place}: {kind} is wanted, not {value!r}"]
    class_ = getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind, None)
    if class_ is None:
        return []  # a quantity, a number or a text
    if not isinstance(value, dict):
        return [f"{place}: an object is wanted"]
    names = {json: own for own, json in class_.attribute_map.items()}
    errors = [f"{place}.{key}: no such field" for key in value if key not in names]
    given = {names[key]: v for key, v in value.items() if key in names}
    for own, v in given.items():
        errors += problems(v, class_.openapi_types[own], f"{place}.{class_.attribute_map[own]}")
    try:
        class_(**given)  # a field that must be there, and allowed values
    except ValueError as e:
        errors.append(f"{place}: {e}")
    return errors


KINDS = {
    "InferenceService": ("serving.kserve.io/v1beta1", "V1beta1InferenceService"),
    "ServingRuntime": ("serving.kserve.io/v1alpha1", "V1alpha1ServingRuntime"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_of_kserve_fit_its_models(kind: str) -> None:
    pytest.importorskip("kserve", reason="kserve is not installed: `make test-kserve` installs it")
    manifest = manifest_of(kind)
    version, model = KINDS[kind]
    assert manifest["apiVersion"] == version
    assert problems(manifest, model, kind) == []
    manifest["spec"]["unknown"] = 1
    assert problems(manifest, model, kind) == [f"{kind}.spec.unknown: no such field"]
