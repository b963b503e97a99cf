"""Recognises other formats in files that are no ONNX model, and suggests a remedy.

It is used only if a file does not parse or has no graph: a valid model is never rejected for its
first bytes. Nothing in such a file is run, unpickled or unpacked.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

EXPORT = "export the model to ONNX and give that file"
AGAIN = "fetch or export the file again, and compare its size with that of the original"
UNPACK = "unpack it and give the .onnx file inside"
_LFS = b"version https://git-lfs.github.com/spec/"
_SCAN = 1 << 16
"""The number of bytes at the start that are searched for words."""


class Format(NamedTuple):
    """A format, as the subject of "the file is ...", and a remedy."""

    name: str
    remedy: str


_STARTS = {
    b"\x1f\x8b": Format("compressed by gzip", UNPACK),
    b"BZh": Format("compressed by bzip2", UNPACK),
    b"\xfd7zXZ\x00": Format("compressed by xz", UNPACK),
    b"\x28\xb5\x2f\xfd": Format("compressed by zstd", UNPACK),
    b"7z\xbc\xaf\x27\x1c": Format("a 7z archive", UNPACK),
    b"Rar!\x1a\x07": Format("a RAR archive", UNPACK),
    b"\x89HDF\r\n\x1a\n": Format("HDF5, as Keras writes models", EXPORT),
    b"GGUF": Format("GGUF, the format of llama.cpp", EXPORT),
    b"ggml": Format("GGML, an old format of llama.cpp", EXPORT),
    b"ggjt": Format("GGML, an old format of llama.cpp", EXPORT),
    b"\x93NUMPY": Format("a numpy array (.npy)", "give the model; arrays are given as inputs"),
    b"ftrt": Format("a TensorRT engine", "give the ONNX model that the engine was built from"),
    b"ptrt": Format("a TensorRT engine", "give the ONNX model that the engine was built from"),
    b"7767517": Format("a parameter file of ncnn", EXPORT),
    b"\x7fELF": Format("a compiled library or program", EXPORT),
    b"MZ": Format("a compiled library or program", EXPORT),
    b"\x89PNG": Format("an image (PNG)", "give the model; arrays are given as inputs"),
    b"%PDF": Format("a PDF document", AGAIN),
}
_AT_FOUR = {
    b"ORTM": Format(
        "ONNX Runtime's own format (.ort)",
        "give the .onnx file that it was converted from: ORT format holds a model that ONNX"
        " Runtime has rewritten for itself, and has no way back",
    ),
    b"TFL3": Format("TensorFlow Lite (.tflite)", "convert it with tf2onnx --tflite"),
}
"""Names of flatbuffers, which follow the offset of the root."""


def find_format(raw: bytes) -> Format | None:
    """Return the format of a file by its first bytes; None if it is not recognised."""
    if not raw:
        return Format("empty", AGAIN)
    for start, of_start in _STARTS.items():
        if raw.startswith(start):
            return of_start
    if raw[4:8] in _AT_FOUR:
        return _AT_FOUR[raw[4:8]]
    checks: tuple[Callable[[bytes], Format | None], ...] = (
        _pointer, _archive, _pickle, _safetensors, _tensorflow, _text, _truncated,
    )  # fmt: skip
    return next((found for check in checks if (found := check(raw)) is not None), None)


def _pointer(raw: bytes) -> Format | None:
    if raw.startswith(_LFS):
        return Format(
            "a pointer of git-lfs and not the model itself",
            "run `git lfs pull` in the repository, or download the file behind the pointer",
        )
    if raw.startswith((b"/annex/objects/", b"../.git/annex/objects/", b".git/annex/objects/")):
        return Format("a pointer of git-annex and not the model itself", "run `git annex get`")
    return None


def _archive(raw: bytes) -> Format | None:
    if raw[257:262] == b"ustar":
        return Format("a tar archive", UNPACK)
    if not raw.startswith(b"PK\x03\x04"):
        return None
    try:
        names = zipfile.ZipFile(io.BytesIO(raw)).namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return Format("a zip that is not whole", AGAIN)
    return archive_format(names)


def archive_format(names: Sequence[str]) -> Format:
    """The format of a zip by the names in it."""
    models = [n for n in names if n.endswith(".onnx")]
    if models:
        return Format(f"a zip archive with {models[0][:80]!r} in it", UNPACK)
    if any(n.endswith("data.pkl") for n in names):
        return Format("a PyTorch file", "export the module with torch.onnx.export")
    if any(n.endswith(".npy") for n in names):
        return Format("an archive of numpy arrays (.npz)", "give the model; arrays are inputs")
    if "config.json" in names and any(n.endswith(".weights.h5") for n in names):
        return Format("a Keras file", EXPORT)
    if "manifest.sha256" in names:
        return Format(
            "a package of compiled code, which holds no model",
            "load the package by its path, or give the model that it was compiled from",
        )
    return Format("a zip archive without a model in it", "give an ONNX file")


def _pickle(raw: bytes) -> Format | None:
    # Pickle protocol 2 and newer; the content is not read, because unpickling runs code.
    if len(raw) > 2 and raw[0] == 0x80 and 2 <= raw[1] <= 5 and raw[2:3] in b"\x95}]()c\x8a\x8cX":
        return Format("a Python pickle, as PyTorch, joblib and scikit-learn write", EXPORT)
    return None


def _safetensors(raw: bytes) -> Format | None:
    if len(raw) < 10 or raw[8:9] != b"{":
        return None
    (length,) = struct.unpack_from("<Q", raw)
    if 2 <= length <= len(raw) - 8:
        return Format("safetensors, which holds weights and no graph", EXPORT)
    return None


def _tensorflow(raw: bytes) -> Format | None:
    head = raw[:_SCAN]
    if raw.startswith(b"\x08\x01\x12") and (b"PartitionedCall" in raw or b"tf." in head):
        return Format("a SavedModel of TensorFlow", "convert its folder with tf2onnx")
    return None


def _text(raw: bytes) -> Format | None:
    """Recognise pages, data and sources: files that start with printable characters."""
    head = raw[:_SCAN].lstrip(b"\xef\xbb\xbf \t\r\n")
    low = head[:512].lower()
    if low.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) or b"<html" in low:
        return Format(
            "an HTML page: the download gave a web page in the place of the file",
            "download the file itself; on Hugging Face and GitHub its address has /resolve/ or"
            " /raw/ where that of its page has /blob/",
        )
    if low.startswith(b"<?xml"):
        kind = "a model of OpenVINO (.xml)" if b"<net" in low else "XML"
        return Format(kind, EXPORT)
    if low.startswith(b"{"):
        return _json(raw)
    text = head[:256].decode("utf-8", "ignore")
    if "ir_version" in text:
        return Format("the text form of ONNX", "read it with onnx.parser.parse_model and save that")
    if len(head) > 8 and text and all(c.isprintable() or c in "\t\r\n" for c in text):
        return Format(f"text that starts with {text[:40]!r}", AGAIN)
    return None


def _json(raw: bytes) -> Format | None:
    head = raw[:_SCAN].decode("utf-8", "ignore")
    if '"opsetImport"' in head or '"irVersion"' in head:
        return Format(
            "an ONNX model as JSON", 'convert it: onnx.save(onnx.load(path, "json"), ...)'
        )
    try:
        json.loads(raw[:_SCAN])
    except ValueError:
        if '"' not in head[:64]:
            return None
    return Format(f"JSON that starts with {head[:40]!r}", AGAIN)


def _truncated(raw: bytes) -> Format | None:
    """Recognise a truncated model: its last field reaches beyond the end of the file."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        field, wire = tag >> 3, tag & 7
        if not 1 <= field <= 25 or wire not in (0, 2):
            return None
        length, at = _varint(raw, at)
        if at > len(raw):
            break
        if wire == 2:
            at += length
    if at <= len(raw):
        return None
    return Format(f"truncated: it ends {at - len(raw):,} bytes before its last part does", AGAIN)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Decode a protobuf varint; return it and the next offset (beyond the end if truncated)."""
    value = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return value, len(raw) + 1
