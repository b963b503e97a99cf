"""Models that run elsewhere: lost replicas, deadlines, and answers that come once."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import ConfigError
from monograph.generate.batching.options import RequestOptions
from monograph.serve.failures import Failure, RequestError
from monograph.serve.folder import find_models
from monograph.serve.remote.host import ModelHost
from monograph.serve.remote.messages import (
    Description,
    GenerateAttempt,
    IndexedToken,
    InferAttempt,
    InferReply,
    LostError,
    RemoteFailure,
    TokenReply,
)
from monograph.serve.remote.models import RemoteLanguageModel, RemoteTensorModel
from monograph.serve.remote.repository import RemoteRepository
from monograph.serve.served import GeneratedToken, TokenRequest
from monograph.serve.settings import ServerSettings, read_settings
from tests.serve.models import WEIGHTS, affine, language, save

X = np.arange(8, dtype=np.float32).reshape(2, 4)
REQUEST = TokenRequest((5, 9, 17), 24, RequestOptions(temperature=1.2, seed=3))
SETTINGS = "[models.llama]\nmax_length = 96\nslots = 2\nbatch_invariant = true\n"
FEEDS = {"x": X}


@dataclass
class Network:
    """A link to hosts in this process; messages are pickled, and some of them are lost."""

    hosts: list[ModelHost]
    lose: Callable[[int, int], bool] = lambda attempt, token: False
    """Decide by the number of the attempt, and of the token after it, what is lost."""
    reply: RemoteFailure | None = None
    """An answer in place of that of a host."""
    attempts: list[Any] = field(default_factory=list)
    cancelled: int = 0

    def next_host(self, attempt: Any) -> ModelHost:
        self.attempts.append(pickle.loads(pickle.dumps(attempt)))
        return self.hosts[len(self.attempts) % len(self.hosts)]

    async def infer(self, attempt: InferAttempt) -> InferReply:
        host = self.next_host(attempt)
        number = len(self.attempts) - 1
        if self.reply is not None:
            return self.reply
        try:
            found: InferReply = pickle.loads(pickle.dumps(await host.infer(self.attempts[-1])))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.lose(number, 0):
            raise LostError("the node is gone")
        return found

    async def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
        host = self.next_host(attempt)
        number = len(self.attempts) - 1
        given = 0
        async for reply in host.generate(self.attempts[-1]):
            if self.lose(number, given):
                raise LostError("the node is gone")
            yield pickle.loads(pickle.dumps(reply))
            given += 1

    def describe(self, version: str) -> Description | RemoteFailure:
        found: Description | RemoteFailure = pickle.loads(
            pickle.dumps(self.hosts[0].describe(version))
        )
        return found


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ServerSettings:
    folder = language(tmp_path_factory.mktemp("models"))
    affine(folder / "affine.onnx")
    (folder / "monograph.toml").write_text(SETTINGS)
    return read_settings(folder)


@pytest.fixture(scope="module")
def hosts(settings: ServerSettings) -> Iterator[dict[str, list[ModelHost]]]:
    made = {name: [ModelHost(settings, name) for _ in "ab"] for name in ("affine", "llama")}
    yield made
    for host in (h for several in made.values() for h in several):
        host.close()


def front(settings: ServerSettings, **links: Network) -> RemoteRepository:
    """Return the models behind links, as a front has them."""
    made = RemoteRepository(settings, links)
    made.load_all()
    return made


def tensors(settings: ServerSettings, link: Network) -> RemoteTensorModel:
    model = front(settings, affine=link).get("affine")
    assert isinstance(model, RemoteTensorModel)
    return model


def texts(settings: ServerSettings, link: Network) -> RemoteLanguageModel:
    model = front(settings, llama=link).get("llama")
    assert isinstance(model, RemoteLanguageModel)
    return model


def infer(model: RemoteTensorModel, seconds: float = 60.0) -> Any:
    return asyncio.run(model.infer(FEEDS, time.monotonic() + seconds))


def tokens(model: RemoteLanguageModel, request: TokenRequest = REQUEST) -> list[GeneratedToken]:
    async def run() -> list[GeneratedToken]:
        return [token async for token in model.generate(request)]

    return asyncio.run(run())


def test_a_model_elsewhere_is_described_and_answers_as_one_here(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    model = tensors(settings, Network(hosts["affine"]))
    assert [str(p) for p in (*model.inputs, *model.outputs)] == [
        "x: f32[batch, 4]",
        "y: f32[batch, 3]",
    ]
    assert model.max_batch == 64
    assert model.independence in ("bits", "tolerance")
    np.testing.assert_allclose(infer(model)[0], X @ WEIGHTS, rtol=1e-6)
    assert model.statistics.success.count == 1


def test_a_lost_request_is_sent_again_with_its_id(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    link = Network(hosts["affine"], lambda attempt, _: attempt < 3)
    model = tensors(settings, link)
    np.testing.assert_allclose(infer(model)[0], X @ WEIGHTS, rtol=1e-6)
    assert len(link.attempts) == 4
    assert len({a.id for a in link.attempts}) == 1
    left = [a.seconds for a in link.attempts]
    assert left == sorted(left, reverse=True)
    assert model.statistics.retries == {"lost": 3}


def test_a_request_that_ends_every_replica_is_not_sent_without_end(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    link = Network(hosts["affine"], lambda *_: True)
    with pytest.raises(RequestError, match="sent 6 times, and each replica was lost") as failed:
        infer(tensors(settings, link))
    assert failed.value.kind is Failure.UNAVAILABLE
    assert len(link.attempts) == settings.ray.front.retries + 1


@pytest.mark.parametrize(
    ("kind", "attempts"), [(Failure.INVALID, 1), (Failure.FULL, 1), (Failure.UNAVAILABLE, 6)]
)
def test_only_replicas_that_are_unavailable_are_asked_again(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]], kind: Failure, attempts: int
) -> None:
    link = Network(hosts["affine"], reply=RemoteFailure(kind, "the reason"))
    with pytest.raises(RequestError, match="the reason") as failed:
        infer(tensors(settings, link))
    assert failed.value.kind is kind
    assert len(link.attempts) == attempts


def test_a_wrong_request_fails_with_the_message_of_the_model(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    model = tensors(settings, Network(hosts["affine"]))
    wrong = model.infer({"z": X}, time.monotonic() + 60)
    with pytest.raises(RequestError, match="x") as failed:
        asyncio.run(wrong)
    assert failed.value.kind is Failure.INVALID
    assert model.statistics.failures == {"invalid": 1}


def test_a_deadline_ends_a_request_and_cancels_its_work(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    class Silent(Network):
        async def infer(self, attempt: InferAttempt) -> InferReply:
            self.attempts.append(attempt)
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
            return []

    link = Silent(hosts["affine"])
    with pytest.raises(RequestError, match="deadline") as failed:
        infer(tensors(settings, link), 0.05)
    assert failed.value.kind is Failure.EXPIRED
    assert link.cancelled == 1


def test_attempts_that_meet_on_a_host_share_a_run(hosts: dict[str, list[ModelHost]]) -> None:
    host = hosts["affine"][0]
    model = host.describe("1")

    async def run() -> list[Any]:
        attempt = InferAttempt("the same", "1", FEEDS, 60)
        first = asyncio.create_task(host.infer(attempt))
        others = [asyncio.create_task(host.infer(attempt)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()  # its caller has left; the others still wait
        return await asyncio.gather(*others)

    assert not isinstance(model, RemoteFailure)
    answers = asyncio.run(run())
    assert all(a is answers[0] for a in answers)
    np.testing.assert_allclose(answers[0][0], X @ WEIGHTS, rtol=1e-6)


@pytest.mark.parametrize("cuts", [(0,), (1, 1), (7, 0, 3), (23,)])
def test_a_lost_stream_goes_on_and_gives_each_token_once(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]], cuts: tuple[int, ...]
) -> None:
    whole = tokens(texts(settings, Network(hosts["llama"])))
    assert len(whole) == 24
    link = Network(hosts["llama"], lambda i, token: i < len(cuts) and token == cuts[i])
    model = texts(settings, link)
    assert tokens(model) == whole
    given = [len(a.request.continued) for a in link.attempts]
    assert given == [sum(cuts[:i]) for i in range(len(cuts) + 1)]
    assert [a.number for a in link.attempts] == [*range(len(cuts) + 1)]
    assert sum(model.statistics.retries.values()) == len(cuts)
    assert model.statistics.generated == 24


def test_tokens_that_came_before_are_dropped_and_gaps_are_errors(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    class Stutter(Network):
        async def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
            async for reply in super().generate(attempt):
                yield reply
                yield reply

    whole = tokens(texts(settings, Network(hosts["llama"])))
    assert tokens(texts(settings, Stutter(hosts["llama"]))) == whole

    class Gap(Network):
        async def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
            yield IndexedToken(1, GeneratedToken(3, "x"))

    with pytest.raises(RequestError, match="token 1 came where token 0 was expected"):
        tokens(texts(settings, Gap(hosts["llama"])))


def test_a_later_attempt_ends_an_earlier_one_on_the_same_host(
    hosts: dict[str, list[ModelHost]],
) -> None:
    host = hosts["llama"][0]

    async def run() -> tuple[int, int]:
        first = host.generate(GenerateAttempt("id", 0, "1", REQUEST))
        reply = await anext(first)
        assert isinstance(reply, IndexedToken)
        wanted = replace(REQUEST, continued=(reply.token.token,))
        second = host.generate(GenerateAttempt("id", 1, "1", wanted))
        await anext(second)
        rest = [r async for r in first]
        stale = [r async for r in host.generate(GenerateAttempt("id", 0, "1", REQUEST))]
        others = [r async for r in second]
        return len(rest) + len(stale), len(others)

    assert asyncio.run(run()) == (0, 22)


def test_a_stream_of_an_unknown_version_fails(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    model = texts(settings, Network(hosts["llama"]))
    model.version = "7"
    with pytest.raises(RequestError, match="no version") as failed:
        tokens(model)
    assert failed.value.kind is Failure.UNKNOWN


def stateful(path: Path) -> Path:
    """Save a package that keeps state between runs."""
    source = save(
        path.with_suffix(".onnx"),
        [helper.make_node("Add", ["past", "x"], ["present"])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("past", "x")],
        [helper.make_tensor_value_info("present", TensorProto.FLOAT, [4])],
    )
    session = monograph.load(source, "cpu", donate={"present": "past"})
    session.run({name: np.ones(4, np.float32) for name in ("past", "x")})
    session.save(path)
    session.close()
    source.unlink()
    return path


def test_a_model_with_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    stateful(tmp_path / "counter.mono")
    settings = read_settings(tmp_path)
    host = ModelHost(settings, "counter")
    about = host.describe("")
    assert isinstance(about, RemoteFailure)
    assert "a model with state is not served" in about.message
    link = Network([host])
    repository = front(settings, counter=link)
    assert not repository.ready
    with pytest.raises(RequestError, match="a model with state is not served") as failed:
        repository.get("counter")
    assert failed.value.kind is Failure.UNAVAILABLE
    (tmp_path / "monograph.toml").write_text('[models.counter]\ndonate = {present = "past"}\n')
    with pytest.raises(ConfigError, match="a model with state is not served"):
        read_settings(tmp_path)


def test_models_are_not_loaded_by_requests(
    settings: ServerSettings, hosts: dict[str, list[ModelHost]]
) -> None:
    repository = front(settings, affine=Network(hosts["affine"]))
    for change in (repository.load, repository.unload):
        with pytest.raises(RequestError, match="deploy the application again") as failed:
            change("affine")
        assert failed.value.kind is Failure.UNIMPLEMENTED
    assert [*find_models(settings)] == ["affine", "llama"]


RAY = """
[ray]
front = "any"
max_replicas = 4
[ray.models.llama]
min_replicas = 2
gpus = 1
resources = { accelerator = 0.5 }
"""


def test_the_table_of_ray_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "monograph.toml"
    file.write_text(RAY)
    ray = read_settings(tmp_path).ray
    assert (ray.front.front, ray.for_model("other").max_replicas) == ("any", 4)
    llama = ray.for_model("llama")
    assert (llama.min_replicas, llama.max_replicas, llama.gpus) == (2, 4, 1)
    assert llama.resources == {"accelerator": 0.5}
    for text, message in (
        ("[ray]\nreplicas = 3\n", "no such setting"),
        ('[ray]\nfront = "edge"\n', "`front` must be a place"),
        ("[ray]\nmin_replicas = 3\nmax_replicas = 2\n", "min_replicas <= max_replicas"),
        ("[ray.models.llama]\nfront_replicas = 3\n", "no such setting"),
        ("[ray]\ncpus = -1\n", "`cpus` must not be negative"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_settings(tmp_path)
