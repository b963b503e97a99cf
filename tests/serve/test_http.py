"""The Open Inference Protocol over HTTP, by requests as clients send them."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from tests.serve.models import WEIGHTS
from tests.serve.process import ServerProcess

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
AFFINE = "/v2/models/affine/infer"


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def infer(server: ServerProcess, path: str, **call: Any) -> tuple[int, dict[str, Any]]:
    status, body = server.get(path, json.dumps(call).encode())
    return status, json.loads(body)


def array_of(output: dict[str, Any]) -> np.ndarray:
    return np.array(output["data"]).reshape(output["shape"])


def binary_call(x: np.ndarray, datatype: str = "FP32", **more: Any) -> tuple[bytes, dict[str, str]]:
    data = x.tobytes()
    given = {"name": "x", "datatype": datatype, "shape": list(x.shape)}
    given["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [given], **more}).encode()
    return head + data, {"Inference_Header_Content_Length": str(len(head))}


def test_server_and_models_describe_themselves(server: ServerProcess) -> None:
    found = json.loads(server.get("/v2")[1])
    assert found["name"] == "monograph"
    assert "binary_tensor_data" in found["extensions"]
    found = json.loads(server.get("/v2/models/affine")[1])
    assert found["versions"] == ["1", "2"]
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
    for path in ("health/live", "health/ready", "models/affine/ready"):
        status, body = server.get(f"/v2/{path}")
        assert status == 200
        assert json.loads(body).get("live", json.loads(body).get("ready")) is True


@pytest.mark.parametrize("data", [X.ravel().tolist(), X.tolist()], ids=["flat", "nested"])
def test_json_tensors_give_the_outputs_of_the_newest_version(
    server: ServerProcess, data: list[Any]
) -> None:
    status, found = infer(server, AFFINE, id="a", inputs=[tensor("x", "FP32", [2, 4], data)])
    assert status == 200
    assert (found["id"], found["model_version"]) == ("a", "2")
    assert np.array_equal(array_of(found["outputs"][0]), X @ WEIGHTS * 2)


def test_a_version_is_chosen_by_the_path(server: ServerProcess) -> None:
    path = "/v2/models/affine/versions/1/infer"
    _, found = infer(server, path, inputs=[tensor("x", "FP32", [2, 4], X.tolist())])
    assert found["model_version"] == "1"
    assert np.array_equal(array_of(found["outputs"][0]), X @ WEIGHTS)


@pytest.mark.parametrize("coding", ["", "gzip", "deflate"])
def test_binary_tensors_go_both_ways(server: ServerProcess, coding: str) -> None:
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    body, headers = binary_call(X, outputs=wanted)
    if coding:
        body = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
        headers |= {"Content_Encoding": coding}
    status, answer = server.get(AFFINE, body, **headers)
    assert status == 200
    size = X.shape[0] * 3 * 4
    head = json.loads(answer[:-size])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": size}
    assert "data" not in head["outputs"][0]
    found = np.frombuffer(answer[-size:], np.float32).reshape(2, 3)
    assert np.array_equal(found, X @ WEIGHTS * 2)


def test_texts_and_other_types_come_back_unchanged(server: ServerProcess) -> None:
    texts = ["", "a", "\u00e9\u4e2d", "x" * 300]
    raw = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    half = np.array([0.5, -2, 1024], np.float16)
    inputs = [
        {"name": "text", "datatype": "BYTES", "shape": [4],
         "parameters": {"binary_data_size": len(raw)}},
        tensor("flag", "BOOL", [2], [True, False]),
        tensor("whole", "INT64", [3], [-(2**63), 2**63 - 1, 0]),
        tensor("byte", "UINT8", [1], [255]),
        {"name": "half", "datatype": "FP16", "shape": [3],
         "parameters": {"binary_data_size": half.nbytes}},
        tensor("real", "FP64", [0], []),
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs}).encode()
    status, answer = server.get(
        "/v2/models/echo/infer", head + raw + half.tobytes(),
        Inference_Header_Content_Length=str(len(head)),
    )  # fmt: skip
    assert status == 200, answer
    found = {o["name"]: o for o in json.loads(answer)["outputs"]}
    assert found["text_out"]["data"] == texts
    assert found["flag_out"]["data"] == [True, False]
    assert found["whole_out"]["data"] == [-(2**63), 2**63 - 1, 0]
    assert (found["byte_out"]["datatype"], found["byte_out"]["data"]) == ("UINT8", [255])
    assert found["half_out"]["data"] == half.tolist()
    assert found["real_out"]["shape"] == [0]


def test_requested_outputs_come_in_that_order(server: ServerProcess) -> None:
    inputs = [tensor(n, t, [1], v) for n, t, v in (
        ("text", "BYTES", ["a"]), ("flag", "BOOL", [True]), ("whole", "INT64", [1]),
        ("byte", "UINT8", [1]), ("half", "FP16", [1]), ("real", "FP64", [1]))]  # fmt: skip
    wanted = [{"name": "whole_out"}, {"name": "flag_out"}]
    _, found = infer(server, "/v2/models/echo/infer", inputs=inputs, outputs=wanted)
    assert [o["name"] for o in found["outputs"]] == ["whole_out", "flag_out"]


GOOD = [tensor("x", "FP32", [1, 4], [1, 2, 3, 4])]
WRONG = [
    ("unknown model", "/v2/models/nothing/infer", {"inputs": GOOD}, 404, "nothing"),
    ("unknown version", "/v2/models/affine/versions/9/infer", {"inputs": GOOD}, 404, "9"),
    ("no inputs", AFFINE, {}, 400, "inputs"),
    ("missing input", AFFINE, {"inputs": []}, 400, "missing"),
    ("unknown input", AFFINE, {"inputs": [tensor("z", "FP32", [1, 4], [0] * 4)]}, 400, "z"),
    ("twice", AFFINE, {"inputs": GOOD * 2}, 400, "name of its own"),
    ("type", AFFINE, {"inputs": [tensor("x", "INT64", [1, 4], [0] * 4)]}, 400, "i64"),
    ("no type", AFFINE, {"inputs": [tensor("x", "FP31", [1, 4], [0] * 4)]}, 400, "FP31"),
    ("rank", AFFINE, {"inputs": [tensor("x", "FP32", [4], [0] * 4)]}, 400, "rank"),
    ("size", AFFINE, {"inputs": [tensor("x", "FP32", [1, 5], [0] * 5)]}, 400, "5"),
    ("count", AFFINE, {"inputs": [tensor("x", "FP32", [1, 4], [0] * 3)]}, 400, "3"),
    ("negative", AFFINE, {"inputs": [tensor("x", "FP32", [-1, 4], [0] * 4)]}, 400, "shape"),
    ("huge", AFFINE, {"inputs": [tensor("x", "FP32", [2**62, 4], [])]}, 400, "shape"),
    ("ragged", AFFINE, {"inputs": [tensor("x", "FP32", [1, 4], [[1], [2, 3], 4])]}, 400, "even"),
    ("texts", AFFINE, {"inputs": [tensor("x", "FP32", [1, 4], list("abcd"))]}, 400, "FP32"),
    ("no data", AFFINE, {"inputs": [{**GOOD[0], "data": None}]}, 400, "list"),
    ("output", AFFINE, {"inputs": GOOD, "outputs": [{"name": "q"}]}, 400, "q"),
    ("index", "/v2/models/gather/infer",
     {"inputs": [tensor("rows", "INT64", [1], [7])]}, 400, ""),
    ("range", "/v2/models/gather/infer",
     {"inputs": [tensor("rows", "INT64", [1], [2**63])]}, 400, "INT64"),
    ("infinity", "/v2/models/logarithm/infer",
     {"inputs": [tensor("x", "FP32", [1], [0])]}, 400, "binary_data"),
    ("shared memory", AFFINE,
     {"inputs": [{**GOOD[0], "parameters": {"shared_memory_region": "a"}}]}, 501, "shared memory"),
    ("sequence", AFFINE, {"inputs": GOOD, "parameters": {"sequence_id": 4}}, 501, "sequence_id"),
    ("timeout", AFFINE, {"inputs": GOOD, "parameters": {"timeout": "soon"}}, 400, "timeout"),
    ("binary size", AFFINE,
     {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4],
                  "parameters": {"binary_data_size": 16}}]}, 400, "within the body"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "call", "status", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_a_wrong_request_is_refused_with_its_reason(
    server: ServerProcess, path: str, call: dict[str, Any], status: int, message: str
) -> None:
    given, found = infer(server, path, **call)
    assert given == status, found
    assert set(found) == {"error"}
    assert message in found["error"]
    assert "Traceback" not in found["error"]


def test_bodies_that_are_no_request_are_refused(server: ServerProcess) -> None:
    bomb = gzip.compress(bytes(100 << 20))
    for body, headers, status in [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b'{"inputs": ' * 2000, {}, 400),
        (b"{}", {"Inference_Header_Content_Length": "3"}, 400),
        (b"{}", {"Inference_Header_Content_Length": "-1"}, 400),
        (b"{}", {"Content_Encoding": "gzip"}, 400),
        (b"{}", {"Content_Encoding": "br"}, 400),
        (bomb, {"Content_Encoding": "gzip"}, 413),
    ]:
        given, found = server.get(AFFINE, body, **headers)
        assert given == status, (body[:20], headers, found)
        assert "error" in json.loads(found)
    assert server.get("/nothing")[0] == 404
    assert server.get("/v2/nothing")[0] == 404
    assert server.get(AFFINE)[0] == 405


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(server: ServerProcess) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 10) as s:
        s.sendall(
            f"POST {AFFINE} HTTP/1.1\r\nHost: a\r\nContent-Length: {1 << 40}\r\n\r\n".encode()
        )
        assert s.recv(100).split(b" ")[1] == b"413"


def test_extensions_that_are_not_there_say_so(server: ServerProcess) -> None:
    for path in ("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status",
                 "/v2/trace/setting", "/v2/models/affine/trace/setting", "/v2/logging",
                 "/v2/models/affine/generate"):  # fmt: skip
        status, body = server.get(path)
        assert (status, "not implemented" in json.loads(body)["error"]) == (501, True)


def test_statistics_count_requests_and_failures(server: ServerProcess) -> None:
    def counts() -> tuple[int, int]:
        found = json.loads(server.get("/v2/models/gather/stats")[1])["model_stats"][0]
        stats = found["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"]

    before = counts()
    path = "/v2/models/gather/infer"
    infer(server, path, inputs=[tensor("rows", "INT64", [2], [1, 2])])
    infer(server, path, inputs=[tensor("rows", "INT64", [2], [1, 99])])
    assert counts() == (before[0] + 1, before[1] + 1)
    everything = json.loads(server.get("/v2/models/stats")[1])["model_stats"]
    assert {m["name"] for m in everything} == {"affine", "echo", "gather", "logarithm"}


def test_the_repository_lists_unloads_and_loads(server: ServerProcess) -> None:
    def states() -> dict[str, str]:
        found = json.loads(server.get("/v2/repository/index", b"")[1])
        return {f"{e['name']}/{e['version']}": e["state"] for e in found}

    assert states()["affine/1"] == "READY"
    assert server.get("/v2/repository/models/logarithm/unload", b"")[0] == 200
    assert states()["logarithm/1"] == "UNAVAILABLE"
    assert server.get("/v2/models/logarithm/ready")[0] == 503
    one = [tensor("x", "FP32", [1], [1])]
    assert infer(server, "/v2/models/logarithm/infer", inputs=one)[0] == 503
    assert server.get("/v2/repository/models/logarithm/load", b"")[0] == 200
    assert infer(server, "/v2/models/logarithm/infer", inputs=one)[1]["outputs"][0]["data"] == [0.0]
    for operation in ("load", "unload"):
        assert server.get(f"/v2/repository/models/none/{operation}", b"")[0] == 404
        assert server.get(f"/v2/repository/models/..%2Fecho/{operation}", b"")[0] == 404


def test_the_configuration_names_types_and_sizes(server: ServerProcess) -> None:
    found = json.loads(server.get("/v2/models/affine/config")[1])
    assert (found["name"], found["backend"]) == ("affine", "monograph")
    assert found["input"][0]["data_type"] == "TYPE_FP32"
    assert json.loads(server.get("/v2/models/echo/config")[1])["input"][0]["data_type"] == (
        "TYPE_STRING"
    )
