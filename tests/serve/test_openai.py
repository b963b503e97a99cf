"""OpenAI's client, unchanged, against a server with a small language model."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from monograph.errors import ModelError
from monograph.generate import Generator
from monograph.serve.failures import RequestError
from monograph.serve.language.chat import ChatTemplate
from tests.serve.models import language
from tests.serve.process import START, ServerProcess, serving

PROMPT = "hello"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = language(tmp_path_factory.mktemp("models"))
    with (made / "monograph.toml").open("a") as file:
        file.write("slots = 2\n")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with serving(folder) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    made = Generator(folder / "llama", max_length=96)
    return list(made.generate(made.tokenizer.encode(PROMPT), 12))


def ask(client: openai.OpenAI, **more: Any) -> Any:
    given = {"model": "llama", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **more}
    return client.completions.create(**given)


def chat(client: openai.OpenAI, **more: Any) -> Any:
    messages = [{"role": "user", "content": PROMPT}]
    given = {"model": "llama", "messages": messages, "max_tokens": 8, "temperature": 0, **more}
    return client.chat.completions.create(**given)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["llama"]
    assert client.models.retrieve("llama").owned_by == "monograph"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_a_completion_is_that_of_the_generator(
    client: openai.OpenAI, folder: Path, expected: list[int]
) -> None:
    found = ask(client)
    text = Generator(folder / "llama", max_length=96).tokenizer.decode(expected)
    assert found.choices[0].text.strip() == text.strip()
    assert found.usage.completion_tokens == len(expected)
    assert found.usage.total_tokens == found.usage.prompt_tokens + len(expected)
    assert found.choices[0].finish_reason in ("length", "stop")
    logged = ask(client, logprobs=2)
    assert logged.choices[0].text == found.choices[0].text, "the host takes the same tokens"
    assert len(logged.choices[0].logprobs.tokens) == len(expected)
    assert all(len(t) == 2 for t in logged.choices[0].logprobs.top_logprobs)


def test_a_stream_gives_the_same_text_and_the_usage(client: openai.OpenAI) -> None:
    whole = ask(client)
    parts = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_chats_are_rendered_by_the_template_and_stream(client: openai.OpenAI) -> None:
    whole = chat(client)
    assert whole.choices[0].message.role == "assistant"
    parts = list(chat(client, stream=True))
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    assert text == whole.choices[0].message.content
    limited = chat(client, max_tokens=None, max_completion_tokens=3, logprobs=True, top_logprobs=2)
    assert limited.usage.completion_tokens == 3
    content = limited.choices[0].logprobs.content
    assert [len(c.top_logprobs) for c in content] == [2, 2, 2]
    assert content[0].logprob == pytest.approx(content[0].top_logprobs[0].logprob)
    assert content[0].logprob <= 0


def test_a_seed_gives_the_same_choices_and_choices_differ(client: openai.OpenAI) -> None:
    how = {"temperature": 1.5, "top_p": 0.9, "seed": 7, "n": 3}
    first, second = ([c.text for c in ask(client, **how).choices] for _ in range(2))
    assert first == second
    assert len(set(first)) > 1
    streamed = ["", "", ""]
    for part in ask(client, **how, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.text
    assert streamed == first


def test_stop_texts_end_a_completion_before_them(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].text
    stop = whole[3:6]
    found = ask(client, stop=[stop, "never"])
    assert found.choices[0].text == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"


def test_penalties_and_biases_change_the_tokens(client: openai.OpenAI) -> None:
    biased = ask(client, logit_bias={"5": 100}, max_tokens=4, logprobs=0)
    assert len(set(biased.choices[0].logprobs.tokens)) == 1
    varied = ask(client, logit_bias={"5": 5}, frequency_penalty=2, presence_penalty=2, logprobs=0)
    assert len(set(varied.choices[0].logprobs.tokens)) > 4


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"extra_body": {"best_guess": 1}}, "best_guess"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, None),
        ({"messages": [{"role": "user", "content": "a " * 500}]}, None),
    ],
)
def test_what_is_not_supported_is_named(
    client: openai.OpenAI, given: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, **given)
    if field is not None:
        assert field in str(e.value.body["param"])
        assert field in e.value.body["message"]


def test_other_requests_are_refused_in_the_same_form(server: ServerProcess) -> None:
    for path, data, status in [
        ("/v1/completions", b"{", 400), ("/v1/completions", b"{}", 400),
        ("/v1/completions", json.dumps({"model": "none", "prompt": "a"}).encode(), 404),
        ("/v1/completions", json.dumps({"model": "llama", "prompt": [99999]}).encode(), 400),
        ("/v1/completions", json.dumps({"model": "llama", "prompt": "\ud800"}).encode(), 400),
        ("/v1/none", b"{}", 404), ("/v1/completions", None, 405),
    ]:  # fmt: skip
        given, body = server.get(path, data)
        assert (given, set(json.loads(body)["error"])) == (
            status, {"message", "type", "param", "code"})  # fmt: skip


def counts(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.get("/v2/models/llama/stats")[1])
    return found["model_stats"][0]


def settled(server: ServerProcess) -> dict[str, Any]:
    """Return the counts when no sequence waits or runs any more."""
    end = time.monotonic() + START
    while (found := counts(server))["active"] or found["waiting"]:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def send(server: ServerProcess, call: dict[str, Any]) -> socket.socket:
    host, port = server.address.split(":")
    body = json.dumps(call).encode()
    made = socket.create_connection((host, int(port)), 10)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    made.sendall(head + body)
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slots(server: ServerProcess, stream: bool) -> None:
    """Sixteen sequences on two slots: those that run and those that wait end with the client."""
    call = {"model": "llama", "prompt": [5], "max_tokens": 90, "n": 16, "stream": stream,
            "temperature": 1, "logit_bias": {"1": -100}}  # fmt: skip
    before = settled(server)
    with send(server, call) as s:
        if stream:
            assert s.recv(400)
    after = settled(server)
    done = {
        k: after["finished"].get(k, 0) - before["finished"].get(k, 0) for k in after["finished"]
    }
    assert sum(done.values()) == after["submitted"] - before["submitted"]
    assert done["cancelled"] > 0
    assert after["generated_tokens"] - before["generated_tokens"] < 16 * 90


def test_sequences_share_steps(server: ServerProcess, client: openai.OpenAI) -> None:
    """Two choices on two slots take about as many steps as one, and compile nothing."""
    before = settled(server)
    found = ask(client, n=2, max_tokens=40, temperature=1, seed=3, logit_bias={"1": -100})
    after = settled(server)
    made = after["generated_tokens"] - before["generated_tokens"]
    assert made == found.usage.completion_tokens == 80
    assert after["steps"] - before["steps"] < 60
    assert after["compiled"] == before["compiled"] == 0


def test_a_choice_does_not_depend_on_its_neighbours(client: openai.OpenAI) -> None:
    """Choice k of seed s is the choice of seed s + k alone."""
    how = {"temperature": 1.2, "top_p": 0.9, "frequency_penalty": 0.5}
    together = [c.text for c in ask(client, seed=40, n=4, **how).choices]
    assert together == [ask(client, seed=40 + k, **how).choices[0].text for k in range(4)]


def test_a_full_queue_refuses_all_of_a_request(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "llama").symlink_to(folder / "llama")
    (tmp_path / "monograph.toml").write_text(
        "[limits]\nqueue = 4\n[models.llama]\nmax_length = 96\nslots = 1\n"
    )
    with serving(tmp_path) as server:
        call = {"model": "llama", "prompt": [5], "max_tokens": 90, "n": 16}
        status, body = server.get("/v1/completions", json.dumps(call).encode())
        assert (status, json.loads(body)["error"]["code"]) == (429, "full")
        found = settled(server)
        assert sum(found["finished"].values()) == found["submitted"] < 16
        call |= {"n": 2, "max_tokens": 2, "logit_bias": {"7": 100}}
        assert server.get("/v1/completions", json.dumps(call).encode())[0] == 200
        samples = server.get("/metrics")[1].decode()
        for name in (
            'monograph_slots{model="llama",state="all",version="1"} 1.0',
            'monograph_requests_total{model="llama",outcome="full",version="1"} 1.0',
            'monograph_first_token_seconds_count{model="llama",version="1"} 2.0',
            'monograph_inter_token_seconds_count{model="llama",version="1"} 2.0',
            'monograph_memory_bytes{model="llama",use="cache",version="1"}',
        ):
            assert name in samples, name


def test_requests_at_the_same_time_do_not_mix(server: ServerProcess) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

            async def one(i: int) -> str:
                found = await client.completions.create(
                    model="llama", prompt=[5 + i % 3, 7], max_tokens=6, temperature=0
                )
                return found.choices[0].text

            found = await asyncio.gather(*[one(i) for i in range(9)])
            assert found[:3] * 3 == found

    asyncio.run(run())  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%0999999999d' % 1 }}",
        "{% set x = messages %}{% for i in range(99) %}{% set x = x + x %}{% endfor %}{{ a.b.c }}",
        "{{ messages.append(1) }}",
        "{{ [].__getattribute__('append') }}",
    ],
)
def test_a_hostile_template_does_no_harm(text: str) -> None:
    template, messages = ChatTemplate(text, {}), [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError, match="chat template"):
        template.render(messages)


def test_a_template_that_cannot_be_read_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelError, match="template"):
        ChatTemplate("{% for %}", {})
