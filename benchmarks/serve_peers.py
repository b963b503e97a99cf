"""Other servers that run the same models with ONNX Runtime, as processes on loopback.

Each runs in an environment of its own (`--peer-python`) that has litserve, nvidia-pytriton and
onnxruntime. The wheel nvidia-pytriton brings the program `tritonserver` and its Python backend.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.serve_load import Call, Feeds, answer_of, binary_call, packed_call

STUB = "triton_python_backend_stub"
START = 120.0
"""The longest wait for a server, in seconds."""
LITSERVE = """
import base64, sys
import litserve as ls, numpy as np, onnxruntime as ort

class Api(ls.LitAPI):
    def setup(self, device):
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(sys.argv[3])
        self.session = ort.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
        self.names = [i.name for i in self.session.get_inputs()]
    def decode_request(self, request):
        return {n: np.frombuffer(base64.b64decode(b), d).reshape(s)
                for n, (d, s, b) in request.items()}
    def batch(self, inputs):
        self.sizes = [len(next(iter(i.values()))) for i in inputs]
        return {n: np.concatenate([i[n] for i in inputs]) for n in self.names}
    def predict(self, feeds):
        return self.session.run(None, {n: feeds[n] for n in self.names})
    def unbatch(self, outputs):
        ends = np.cumsum(self.sizes)
        return [[o[e - s:e] for o in outputs] for s, e in zip(self.sizes, ends)]
    def encode_response(self, outputs):
        return {"outputs": [[str(x.dtype), x.shape, base64.b64encode(x.tobytes()).decode()]
                            for x in outputs]}

class Plain(Api):
    batch = ls.LitAPI.batch
    unbatch = ls.LitAPI.unbatch

if __name__ == "__main__":
    most, workers = int(sys.argv[4]), int(sys.argv[5])
    if most > 1:
        api = Api(max_batch_size=most, batch_timeout=0.0005, enable_async=False)
    else:
        api = Plain(max_batch_size=1)
    ls.LitServer(api, accelerator="cpu", workers_per_device=workers).run(
        port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="error")
"""
TRITON = """
import numpy as np, onnxruntime as ort
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        options = ort.SessionOptions()
        options.intra_op_num_threads = {threads}
        self.session = ort.InferenceSession({path!r}, options, ["CPUExecutionProvider"])
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]
    def execute(self, requests):
        given = [[pb.get_input_tensor_by_name(r, n).as_numpy() for n in self.inputs]
                 for r in requests]
        if {batched} and len(given) > 1:
            sizes = [len(g[0]) for g in given]
            feeds = [np.concatenate(parts) for parts in zip(*given)]
            found = self.session.run(self.outputs, dict(zip(self.inputs, feeds)))
            ends = np.cumsum(sizes)
            found = [[o[e - s:e] for o in found] for s, e in zip(sizes, ends)]
        else:
            found = [self.session.run(self.outputs, dict(zip(self.inputs, g))) for g in given]
        return [pb.InferenceResponse([pb.Tensor(n, x) for n, x in zip(self.outputs, outputs)])
                for outputs in found]
"""
CONFIG = """name: "{name}"
backend: "python"
max_batch_size: {most}
input [{inputs}]
output [{outputs}]
instance_group [{{ kind: KIND_CPU count: {count} }}]
{dynamic}
"""


class Peer:
    """A server as a process; idle ones are stopped while another is timed."""

    def __init__(self, name: str, call: Call, pid: int = 0, url: str = "") -> None:
        self.name, self.call = name, call
        self.port = 0 if url else free_port()
        self.url = url or f"http://127.0.0.1:{self.port}"
        self._pid = pid
        """A process that another starts and ends."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], **env: str) -> None:
        """Start the process and wait until it answers the call."""
        self._process = subprocess.Popen(
            command, env=os.environ | env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + START
        while time.monotonic() < end and self._process.poll() is None:
            try:
                ask(self.url, self.call)
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.2)
            else:
                return
        self.close()
        raise SystemExit(f"no answer from {self.name}")

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the server."""
        if self._process is not None:
            os.killpg(self._process.pid, number)
        elif self._pid:
            os.kill(self._pid, number)

    def close(self) -> None:
        """End the server."""
        if self._process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()
        self._process = None


def ask(url: str, call: Call) -> list[np.ndarray]:
    """Return the outputs of one call."""
    request = urllib.request.Request(url + call.path, call.body, dict(call.headers))
    with urllib.request.urlopen(request, timeout=60) as answer:
        data, head = answer.read(), answer.headers.get("Inference-Header-Content-Length")
    if call.path == "/predict":
        return [
            np.frombuffer(base64.b64decode(b), d).reshape(s)
            for d, s, b in json.loads(data)["outputs"]
        ]
    return [*answer_of(data, head).values()]


def free_port() -> int:
    """Return a port of loopback that is free."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def litserve(
    python: str, model: Path, feeds: Feeds, folder: Path, threads: int, most: int, workers: int
) -> Peer:
    """Start LitServe with batches of up to `most` requests."""
    file = folder / "litserve_peer.py"
    file.write_text(LITSERVE)
    peer = Peer(f"litserve, batch {most}, {workers} x {threads} threads", packed_call(feeds))
    options = [str(peer.port), str(threads), str(most), str(workers)]
    peer.start([python, str(file), str(model), *options])
    return peer


def triton(
    python: str,
    model: Path,
    io: tuple[Feeds, Feeds],
    folder: Path,
    threads: int,
    most: int,
    instances: int,
) -> Peer:
    """Start Triton with its Python backend; most: rows of a batch, 0 for no batches."""
    name = model.parent.name
    repository = folder / f"triton-{most}-{instances}"
    (repository / name / "1").mkdir(parents=True)
    text = TRITON.format(threads=threads, path=str(model), batched=most > 0)
    (repository / name / "1" / "model.py").write_text(text)
    feeds, outputs = io
    config = CONFIG.format(
        name=name, most=most, inputs=_ports(feeds, most), outputs=_ports(outputs, most),
        count=instances, dynamic="dynamic_batching { }" if most else "",
    )  # fmt: skip
    (repository / name / "config.pbtxt").write_text(config)
    peer = Peer(f"triton, batch {most}, {instances} x {threads} threads", binary_call(name, feeds))
    home = installed(python, "pytriton") / "tritonserver"
    peer.start(
        [
            str(home / "bin" / "tritonserver"), f"--model-repository={repository}",
            f"--backend-directory={_backends(python, home, folder)}", f"--http-port={peer.port}",
            "--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false",
            f"--backend-config=python,shm-region-prefix-name=bench{peer.port}",
        ],
        **triton_environment(python, home),
    )  # fmt: skip
    return peer


def _backends(python: str, home: Path, folder: Path) -> Path:
    """Return a folder with the Python backend and the program that runs models of this Python."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    made = folder / "backends" / "python"
    if not made.exists():
        made.mkdir(parents=True)
        stub = home / "python_backend_stubs" / version.stdout.strip() / STUB
        for file in (*(home / "backends" / "python").glob("*.*"), stub):
            (made / file.name).symlink_to(file)
    return made.parent


def triton_environment(python: str, home: Path) -> dict[str, str]:
    """Return the variables by which tritonserver finds the packages of a Python."""
    packages = home.parents[1]
    libraries = [packages / "nvidia_pytriton.libs"]
    return {
        "PYTHONPATH": str(packages),
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }


def installed(python: str, package: str) -> Path:
    """Return the folder of a package of another Python."""
    code = f"import importlib.util as u; print(u.find_spec({package!r}).origin)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).parent


def _ports(tensors: Mapping[str, np.ndarray], most: int) -> str:
    kinds = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "float64": "FP64"}
    parts = []
    for name, x in tensors.items():
        dims = ", ".join(map(str, x.shape[1 if most else 0 :]))
        parts.append(f'{{ name: "{name}" data_type: TYPE_{kinds[str(x.dtype)]} dims: [ {dims} ] }}')
    return ", ".join(parts)
