"""The manifests of `examples/` fit their schemas, the command line and the pages that show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from monograph.cli.main import app as commands
from monograph.serve.folder import MODEL_FILES
from monograph.serve.settings import Limits, read_settings
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
FILES = sorted(EXAMPLES.rglob("*.yaml"))
KUBERNETES = "1.30"
"""The version of Kubernetes whose schemas are used."""


def documents(file: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(file.read_text()) if found]


def named(kind: str) -> dict[str, Any]:
    """The only manifest of a kind."""
    found = [d for file in FILES for d in documents(file) if d.get("kind") == kind]
    assert len(found) == 1, kind
    return found[0]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods that manifests describe, as specifications of Kubernetes."""
    yield "Deployment", named("Deployment")["spec"]["template"]["spec"]
    yield "ServingRuntime", {"containers": named("ServingRuntime")["spec"]["containers"]}
    cluster = named("RayService")["spec"]["rayClusterConfig"]
    yield "head", cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield group["groupName"], group["template"]["spec"]


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def check_kubernetes(manifest: dict[str, Any]) -> None:
    """Raise an error for a manifest that its schema does not allow; unknown fields are errors."""
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate, which has the schemas, is not installed"
    )
    schemas.validate(manifest, KUBERNETES, strict=True)


def test_there_are_examples() -> None:
    folders = {file.relative_to(EXAMPLES).parts[0] for file in FILES}
    assert folders == {"kubernetes", "kserve", "ray"}


@pytest.mark.parametrize("number", range(len(documents(EXAMPLES / "kubernetes/monograph.yaml"))))
def test_manifests_of_kubernetes_fit_their_schemas(number: int) -> None:
    check_kubernetes(documents(EXAMPLES / "kubernetes" / "monograph.yaml")[number])


@pytest.mark.parametrize(("name", "pod"), [*pods()], ids=lambda x: x if isinstance(x, str) else "")
def test_pods_fit_their_schema(name: str, pod: dict[str, Any]) -> None:
    meta = {"name": "pod"}
    check_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})


def test_a_wrong_manifest_does_not_fit() -> None:
    wrong = named("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(Exception, match="arguments"):
        check_kubernetes(wrong)


@pytest.mark.parametrize(("name", "pod"), [*pods()], ids=lambda x: x if isinstance(x, str) else "")
def test_arguments_ports_and_probes_are_those_of_the_server(name: str, pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    if "args" not in container:  # Ray starts the processes of its pods
        assert name in ("head", "workers")
        return
    command, *rest = container["args"]
    group = typer.main.get_command(commands)
    found = group.commands[command].make_context(command, [*rest]).params  # type: ignore[attr-defined]
    assert found["host"] == "0.0.0.0"
    opened = {found["http"] or 8000, *([found["grpc"]] if found["grpc"] else [])}
    assert {p["containerPort"] for p in container["ports"]} == opened
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("readiness", "liveness", "startup")]
    assert {p["port"] for p in probes} == {found["http"] or 8000}
    assert [p["path"].rpartition("/")[2] for p in probes] == ["ready", "live", "ready"]


def test_the_selectors_and_names_of_kubernetes_agree() -> None:
    deployment, service = named("Deployment"), named("Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    chosen = [
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    assert all(c.items() <= labels.items() for c in chosen)
    assert named("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "monograph"
    pod = deployment["spec"]["template"]["spec"]
    ports = {p["name"] for p in pod["containers"][0]["ports"]}
    assert {p["targetPort"] for p in service["spec"]["ports"]} == ports
    claim = named("PersistentVolumeClaim")["metadata"]["name"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    assert pod["terminationGracePeriodSeconds"] > Limits().drain_seconds


def test_the_page_shows_a_part_of_the_deployment() -> None:
    shown = yaml.safe_load(blocks("serve-operations.md", "yaml")[0])
    assert missing(shown, named("Deployment")) == []


def missing(part: Any, whole: Any, place: str = "") -> list[str]:
    """The places of a part that a whole has not, or with another value."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return [m for k, v in part.items() for m in missing(v, whole.get(k), f"{place}/{k}")]
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        pairs = enumerate(zip(part, whole, strict=True))
        return [m for i, (p, w) in pairs for m in missing(p, w, f"{place}/{i}")]
    return [] if part == whole else [f"{place}: {part!r} is not {whole!r}"]


def test_the_service_of_kserve_uses_the_runtime() -> None:
    runtime, service = named("ServingRuntime"), named("InferenceService")
    wanted = service["spec"]["predictor"]["model"]
    assert wanted["runtime"] == runtime["metadata"]["name"]
    formats = {f["name"] for f in runtime["spec"]["supportedModelFormats"]}
    assert wanted["modelFormat"]["name"] in formats
    assert {f".{f}" for f in formats} - set(MODEL_FILES) == {".monograph"}
    assert wanted["protocolVersion"] in runtime["spec"]["protocolVersions"]


# Ray


def serve_configs() -> dict[str, dict[str, Any]]:
    return {
        "serve.yaml": documents(EXAMPLES / "ray" / "serve.yaml")[0],
        "ray-service.yaml": yaml.safe_load(named("RayService")["spec"]["serveConfigV2"]),
        "serve-ray.md": yaml.safe_load(blocks("serve-ray.md", "yaml")[0]),
    }


def test_the_configurations_of_ray_are_one() -> None:
    first, *others = serve_configs().values()
    assert all(other == first for other in others)


def test_the_configuration_of_ray_fits_its_schema() -> None:
    schema = pytest.importorskip(
        "ray.serve.schema", reason="Ray is not installed: `make test-ray` installs it"
    )
    config = serve_configs()["serve.yaml"]
    found = schema.ServeDeploySchema.model_validate(config)
    from monograph.serve.ray import app
    from monograph.serve.ray.application import ARGUMENTS

    module, _, name = found.applications[0].import_path.partition(":")
    assert (module, getattr(app, "__name__", "")) == ("monograph.serve.ray", name)
    assert set(found.applications[0].args) <= ARGUMENTS
    with pytest.raises(ValueError, match="application"):
        schema.ServeDeploySchema.model_validate({**config, "applications": [{"nam": "x"}]})


@pytest.mark.parametrize("source", ["example", "page"])
def test_the_settings_of_ray_are_read(source: str, tmp_path: Path) -> None:
    page = blocks("serve-ray.md", "toml")[0]
    text = page if source == "page" else (EXAMPLES / "ray" / "monograph.toml").read_text()
    (tmp_path / "monograph.toml").write_text(text)
    settings = read_settings(tmp_path)
    assert settings.limits.request_seconds == 60
    assert settings.ray.defaults.max_replicas == 8
