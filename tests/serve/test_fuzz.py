"""Mutated requests: only errors of requests come out. `make fuzz-serve` runs many."""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import Counter
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from monograph.serve.failures import RequestError
from monograph.serve.http import infer as over_http
from monograph.serve.language.fields import CHAT, TEXT, read_fields, read_messages, read_prompts
from monograph.serve.rpc import infer as over_grpc
from monograph.serve.rpc.messages import MESSAGES

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 1e308, 0.5, "", "x", "INT64", "BYTES",
    "\x00", "\u4e2d", [], {}, [[]], [1, [2]], {"binary_data_size": 4}, [None], ["a", 1],
)  # fmt: skip
"""Values that replace values of requests."""


def http_request() -> tuple[dict[str, Any], bytes]:
    """Return the JSON and the binary data of a valid request."""
    call = {
        "id": "7", "parameters": {"binary_data_output": True, "timeout": 10},
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 2],
             "parameters": {"binary_data_size": 16}},
            {"name": "t", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}},
            {"name": "j", "datatype": "INT64", "shape": [1, 2], "data": [[1, 2]]},
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }  # fmt: skip
    return call, np.ones(4, np.float32).tobytes() + b"\1\0\0\0a\0\0\0\0"


def chat_request() -> dict[str, Any]:
    return {
        "model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "temperature": 1, "top_p": 0.5, "n": 2, "stop": ["a"], "seed": 3, "logprobs": True,
        "top_logprobs": 2, "logit_bias": {"3": 1}, "stream": True, "max_tokens": 4,
        "stream_options": {"include_usage": True}, "prompt": ["a"], "tools": [],
    }  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a value with a few parts replaced, left out or repeated."""
    if rng.random() < 0.02:
        return rng.choice(ODD)
    if isinstance(value, dict):
        kept = [(k, mutated(v, rng)) for k, v in value.items() if rng.random() > 0.015]
        if rng.random() < 0.05:
            kept.append((rng.choice(["shape", "data", "name", "x" * 99]), rng.choice(ODD)))
        return dict(kept)
    if isinstance(value, list):
        made = [mutated(v, rng) for v in value]
        return made * 2 if rng.random() < 0.04 else made
    return value


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, cut or doubled."""
    made = bytearray(data)
    for _ in range(rng.randrange(4)):
        if made:
            made[rng.randrange(len(made))] = rng.randrange(256)
    cut = rng.randrange(len(made) + 1) if rng.random() < 0.3 else len(made)
    return bytes(made[:cut]) * (2 if rng.random() < 0.05 else 1)


def try_http(rng: random.Random) -> None:
    call, data = http_request()
    head = json.dumps(mutated(call, rng)).encode()
    body = head + data
    length = len(head) if rng.random() < 0.8 else rng.randrange(-2, 2 * len(body))
    if rng.random() < 0.3:
        body = spoiled(body, rng)
    found, _ = over_http.read_call(body, rng.choice([*[str(length)] * 8, None, "x"]))
    assert all(isinstance(x, np.ndarray) for x in found.feeds.values())


def try_grpc(rng: random.Random) -> None:
    made = MESSAGES["ModelInferRequest"](model_name="m")
    given = made.inputs.add(name="x", datatype=rng.choice(["FP32", "BYTES", "BOOL", "INT8", "Q"]))
    given.shape.extend(rng.choices([0, 1, 2, -1, 2**40], k=rng.randrange(4)))
    if rng.random() < 0.5:
        made.raw_input_contents.append(rng.randbytes(rng.randrange(20)))
    else:
        given.contents.int_contents.extend(rng.choices([0, 1, -1, 2**31 - 1], k=rng.randrange(4)))
        given.contents.fp32_contents.extend([1.0, float("nan")])
    if rng.random() < 0.3:
        made.parameters["a"].bool_param = True
        made.parameters["b"].Clear()
    message = MESSAGES["ModelInferRequest"].FromString(spoiled(made.SerializeToString(), rng))
    over_grpc.read_call(message)


def try_openai(rng: random.Random) -> None:
    given = mutated(chat_request(), rng)
    if not isinstance(given, dict):
        return
    if rng.random() < 0.5:
        given.pop("prompt", None)
        read_fields(given, CHAT, 100)
        read_messages(given)
    else:
        for name in ("messages", "top_logprobs"):
            given.pop(name, None)
        read_fields(given | {"logprobs": 1}, TEXT, 100)
        read_prompts(given)


def run(count: int, seed: int) -> Counter[str]:
    """Try many requests; return what came of them."""
    found: Counter[str] = Counter()
    for i in range(count):
        for work in (try_http, try_grpc, try_openai):
            rng = random.Random(f"{seed}/{i}/{work.__name__}")
            try:
                work(rng)
                found[f"{work.__name__} good"] += 1
            except (RequestError, DecodeError):
                found[f"{work.__name__} refused"] += 1
            except Exception as e:
                raise AssertionError(f"seed {seed}, request {i} of {work.__name__}: {e!r}") from e
    return found


def test_mutated_requests_give_only_errors_of_requests() -> None:
    found = run(1500, SEED)
    print(f"seed {SEED}: {dict(found)}")
    assert all(count > 30 for count in found.values()), found
    assert len(found) == 6


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    print(dict(run(arguments.count, arguments.seed)))
