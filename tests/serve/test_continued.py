"""A broken token stream goes on exactly where it was, in another model of the same files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from monograph.generate.batching.options import RequestOptions
from monograph.serve.folder import find_models
from monograph.serve.language.generation import LanguageModel
from monograph.serve.served import GeneratedToken, TokenRequest
from monograph.serve.settings import read_settings
from tests.serve.models import language


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanguageModel, ...]]:
    folder = language(tmp_path_factory.mktemp("models"))
    settings = read_settings(folder)
    found = find_models(settings)["llama"]["1"]
    own = replace(settings.for_model("llama"), batch_invariant=True, slots=2)
    made = tuple(LanguageModel(found, own, settings.limits) for _ in "ab")
    yield made
    for model in made:
        model.close()


def tokens(model: LanguageModel, request: TokenRequest) -> list[GeneratedToken]:
    async def run() -> list[GeneratedToken]:
        return [token async for token in model.generate(request)]

    return asyncio.run(run())


KINDS = {
    "greedy": RequestOptions(temperature=0),
    "drawn": RequestOptions(temperature=1.3, top_p=0.9, seed=7),
    "penalised": RequestOptions(
        temperature=0.7, seed=1, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=1
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_with_the_same_tokens_and_texts(
    models: tuple[LanguageModel, LanguageModel], kind: str
) -> None:
    request = TokenRequest((5, 9, 17), 24, KINDS[kind], top=None if kind == "greedy" else 2)
    whole = tokens(models[0], request)
    assert len(whole) == 24
    for cut in (1, 2, 11, 23):
        known = tuple(t.token for t in whole[:cut])
        assert tokens(models[1], replace(request, continued=known)) == whole[cut:], cut


def test_a_stop_text_across_the_break_ends_the_stream(
    models: tuple[LanguageModel, LanguageModel],
) -> None:
    plain = tokens(models[0], TokenRequest((5, 9, 17), 12, KINDS["drawn"]))
    stop = plain[5].text + plain[6].text
    request = TokenRequest((5, 9, 17), 12, KINDS["drawn"], stops=(stop,))
    whole = tokens(models[0], request)
    assert whole[-1].finish == "stop"
    assert len(whole) <= 7
    cut = len(whole) - 1
    known = tuple(t.token for t in whole[:cut])
    assert tokens(models[1], replace(request, continued=known)) == whole[cut:]
