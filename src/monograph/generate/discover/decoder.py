"""The roles of a decoder's inputs and outputs, and the shapes of its caches.

A configuration may name them; otherwise the names that exporters use and shapes decide. Both must
agree: a graph that contradicts its configuration would give wrong tokens without an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import onnx

from monograph.errors import ModelError, UnsupportedError
from monograph.generate.discover.folder import LAYERED, Settings
from monograph.generate.discover.infer import (
    FLOATS,
    attention_heads,
    find_logits,
    find_pair,
    find_pairs,
    find_tokens,
    row_width,
)
from monograph.generate.rewrite.surgery import Surgery, inline_branch

KEY, VALUE = "key", "value"
GROUPED = "GroupQueryAttention"
MERGED = "use_cache_branch"
_PAST = re.compile(
    r"past(?:_key_values?|_kv)?[._](?:(\d+)[._])?(?:decoder[._])?(k|v)\w*?[._]?(\d+)?$"
)
_ROLES = {"tokens": "input_ids", "mask": "attention_mask", "positions": "position_ids"}


@dataclass(frozen=True)
class Cache:
    """Keys or values of one layer: [batch, heads, maximum, size]."""

    past: str
    present: str
    kind: str
    dtype: int
    heads: int
    size: int


@dataclass(frozen=True)
class Decoder:
    """The inputs and outputs of a graph by their roles."""

    tokens: str
    logits: str
    caches: tuple[Cache, ...]
    vocabulary: int
    mask: str | None = None
    positions: str | None = None
    single: bool = False
    """True if the graph takes one token at a time."""


def fold_merged(model: onnx.ModelProto) -> bool:
    """Keep the branch of a merged decoder that takes a past; return True if it was merged."""
    inputs = [i for i in model.graph.input if i.name == MERGED]
    if not inputs:
        return False
    nodes = [n for n in model.graph.node if n.op_type == "If" and n.input[0] == MERGED]
    if len(nodes) != 1:
        raise UnsupportedError(
            "a merged decoder must have one If", expected=f"one If on {MERGED}", given=len(nodes)
        )
    branch = next(a.g for a in nodes[0].attribute if a.name == "then_branch")
    inline_branch(model, nodes[0], branch)
    if any(MERGED in n.input for n in model.graph.node):
        raise UnsupportedError(f"only an If may read {MERGED}", given=model.graph.name)
    kept = [i for i in model.graph.input if i.name != MERGED]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return True


def find_roles(s: Surgery, settings: Settings) -> Decoder:
    """Return the roles of a graph's inputs and outputs; raise one error for all missing ones."""
    initialised = set(s.constants)
    inputs = {i.name: i for i in s.graph.input if i.name not in initialised}
    outputs = {o.name: o for o in s.graph.output}
    named = {role: settings.inputs.get(name, name) for role, name in _ROLES.items()}
    _check_named(settings, inputs, outputs)
    tokens, logits = _find_ends(settings, named, inputs, outputs)
    caches = _find_caches(s, settings, inputs, outputs)
    mask, positions = (n if n in inputs else None for n in (named["mask"], named["positions"]))
    known = {tokens, mask, positions, *(c.past for c in caches)}
    if left := [name for name in inputs if name not in known]:
        raise UnsupportedError(
            "the decoder has inputs that a step cannot provide",
            expected=sorted(filter(None, known)),
            given=left,
        )
    found = Decoder(
        tokens,
        logits,
        caches,
        _vocabulary(settings, outputs[logits]),
        mask,
        positions,
        _dims(inputs[tokens])[-1:] == [1],
    )
    _check_positions(found, inputs)
    _check_sizes(s, settings, found)
    return found


def _find_ends(
    settings: Settings, named: dict[str, str], inputs: Any, outputs: Any
) -> tuple[str, str]:
    """Return the names of the token input and the logits output."""
    tokens, logits = named["tokens"], settings.outputs.get("logits", "logits")
    found = tokens if tokens in inputs else find_tokens(inputs, set(named.values()))
    made = logits if logits in outputs else find_logits(outputs)
    if found is None or made is None:
        had = f"inputs {', '.join(list(inputs)[:4])}; outputs {', '.join(list(outputs)[:4])}"
        raise ModelError(
            "the model is no decoder: it must turn tokens into logits",
            expected=f"an input {tokens} and an output {logits}",
            given=f"{settings.model}: {had}",
            hint="models that take embeddings or encoder states are not supported",
        )
    return found, made


def _check_sizes(s: Surgery, settings: Settings, found: Decoder) -> None:
    """Raise an error if sizes of the configuration contradict those of the graph."""
    attention = [{a.name: a.i for a in n.attribute} for n in s.graph.node if n.op_type == GROUPED]
    tables = [
        s.constants[n.input[0]].dims
        for n in s.readers[found.tokens]
        if n.op_type == "Gather" and n.input[0] in s.constants
    ]
    windows = {a.get("local_window_size", -1) for a in attention}
    for what, said, sizes, slack in (
        ("num_attention_heads", settings.query_heads, {a.get("num_heads") for a in attention}, 0),
        ("hidden_size", settings.hidden, {d[1] for d in tables if len(d) == 2}, 0),
        ("sliding_window", settings.window, windows, 1),  # with or without the token itself
    ):
        if said is not None and sizes and all(abs(said - (n or 0)) > slack for n in sizes):
            raise ModelError(
                f"the configuration contradicts the graph: {what} differs",
                expected=f"{said} by {settings.source}",
                given=f"{', '.join(map(str, sorted(n or 0 for n in sizes)))} in the graph",
            )


def _check_positions(found: Decoder, inputs: dict[str, onnx.ValueInfoProto]) -> None:
    for name in (found.tokens, found.positions):
        if name is not None and len(_dims(inputs[name])) != 2:
            raise UnsupportedError(
                f"{name} must be a matrix", expected="[batch, sequence]", given=_dims(inputs[name])
            )


def _check_named(settings: Settings, inputs: Any, outputs: Any) -> None:
    """Raise an error if a configuration names inputs or outputs that the graph lacks."""
    for which, names, known in (
        ("input", settings.inputs, inputs),
        ("output", settings.outputs, outputs),
    ):
        for role, pattern in names.items():
            name = pattern % 0 if role in LAYERED else pattern
            if role.startswith(("cross_", "current_", "past_sequence", "total_sequence")):
                continue
            if name not in known:
                raise ModelError(
                    f"the configuration names an {which} that the graph does not have",
                    expected=f"{role}: one of {', '.join(list(known)[:8])}",
                    given=f"{name} in {settings.source}",
                )


def _find_caches(s: Surgery, settings: Settings, inputs: Any, outputs: Any) -> tuple[Cache, ...]:
    pairs = _named_pairs(settings, inputs) or _matched_pairs(s, inputs, outputs)
    pairs = pairs or [(a, b, KEY if k else VALUE) for a, b, k in find_pairs(s, inputs, outputs)]
    if not pairs:
        raise ModelError(
            "the model is no decoder: it has no cache of keys and values",
            expected="inputs past_key_values.N.key and .value, outputs present.N.key and .value",
            given=f"inputs {', '.join(inputs)}",
            hint="export it with a past: optimum-cli export onnx --task text-generation-with-past",
        )
    names = [name for pair in pairs for name in pair[:2]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ModelError(
            "each cache must be named once", expected="one for keys and one for values per layer",
            given=f"{', '.join(twice)} in {settings.source or settings.model}",
        )  # fmt: skip
    layers = len(pairs) // 2
    if settings.layers is not None and layers != settings.layers:
        raise ModelError(
            "the configuration contradicts the graph: the number of layers differs",
            expected=f"{settings.layers} by {settings.source}",
            given=f"{layers} in the graph",
        )
    caches = []
    for past, present, kind in pairs:
        for name, known in ((past, inputs), (present, outputs)):
            if name not in known:
                raise ModelError("a part of the cache is missing in the graph", given=name)
        caches.append(_cache(s, settings, inputs[past], outputs[present], kind))
    return tuple(caches)


def _named_pairs(settings: Settings, inputs: Any) -> list[tuple[str, str, str]]:
    """Return the caches that a configuration names, by layer, as many as the graph has."""
    found = []
    for kind in (KEY, VALUE):
        past = settings.inputs.get(f"past_{kind}_names")
        present = settings.outputs.get(f"present_{kind}_names")
        if past is None or present is None:
            return []
        layer = 0
        while past % layer in inputs:
            found.append((past % layer, present % layer, kind))
            layer += 1
    return found


def _matched_pairs(s: Surgery, inputs: Any, outputs: Any) -> list[tuple[str, str, str]]:
    """Return the inputs that look like caches, each with the output of its layer and kind."""
    found = []
    for name in inputs:
        match = _PAST.search(name)
        if match is None:
            continue
        tail = name[match.start() :]
        rest = re.sub(r"^past(_key_values?|_kv)?", "", tail)
        tries = [name.replace(tail, p + rest) for p in ("present", "present_key_values")]
        present = next((t for t in tries if t in outputs), None)
        if present is None and (pair := find_pair(s, name, outputs)):
            present = pair[0]
        if present is None:
            raise ModelError(
                "an input looks like a cache, but has no matching output",
                expected=" or ".join(tries),
                given=name,
            )
        found.append((name, present, KEY if match.group(2) == "k" else VALUE))
    return found


def _cache(
    s: Surgery,
    settings: Settings,
    past: onnx.ValueInfoProto,
    present: onnx.ValueInfoProto,
    kind: str,
) -> Cache:
    dtype, dims = past.type.tensor_type.elem_type, _dims(past)
    if dtype not in FLOATS or len(dims) != 4:
        raise ModelError(
            "a cache of an unknown kind",
            expected="floats [batch, heads, length, size]",
            given=f"{past.name}: {onnx.TensorProto.DataType.Name(dtype)}{dims}",
        )
    _check_present(past, present)
    sizes: list[int] = []
    told = {"number of heads": settings.heads, "head_size": settings.head_size}
    for (what, said), dim in zip(told.items(), (dims[1], dims[3]), strict=True):
        if isinstance(dim, int) and said is not None and dim != said:
            raise _contradiction(what, said, settings, f"{past.name}: {dims}")
        size = dim if isinstance(dim, int) else said
        if size is None and what != "head_size":
            size = attention_heads(s, past.name)
        if size is None:
            raise ModelError(
                f"the {what} of the cache is unknown",
                given=f"{past.name}: {dims}",
                hint="put the configuration that was exported with the model beside it",
            )
        sizes.append(size)
    found = Cache(past.name, present.name, kind, dtype, *sizes)
    _check_open(s, settings, found, isinstance(dims[1], int), isinstance(dims[3], int))
    return found


def _check_open(s: Surgery, settings: Settings, cache: Cache, heads: bool, size: bool) -> None:
    """Raise an error if sizes of the configuration contradict those of the weights.

    heads, size: True if the graph itself gives them. The configuration decides open sizes, and a
    step with sizes that the weights do not have cannot be compiled.
    """
    if (heads or settings.heads is None) and (size or settings.head_size is None):
        return
    known = attention_heads(s, cache.past)
    if not heads and known is not None and known != cache.heads:
        given = f"{cache.past}: {known} in the graph"
        raise _contradiction("number of heads", cache.heads, settings, given)
    width = row_width(s, cache.past)
    if width is not None and width != cache.heads * cache.size:
        given = f"{cache.past}: {width} numbers for each token in the graph"
        what = "number of heads" if size else "head_size" if heads or known else "width"
        told = f"{cache.heads} heads of {cache.size} numbers"
        raise _contradiction(what, told, settings, given)


def _contradiction(what: str, said: int | str, settings: Settings, given: str) -> ModelError:
    return ModelError(
        f"the configuration contradicts the graph: the {what} of the cache differs",
        expected=f"{said} by {settings.source}",
        given=given,
    )


def _check_present(past: onnx.ValueInfoProto, present: onnx.ValueInfoProto) -> None:
    """Raise an error if a cache output has other heads or sizes than its input."""
    before, after = _dims(past), _dims(present)
    numbers = [(before[a], after[a]) for a in (1, 3)] if len(after) == 4 else []
    if (after and len(after) != 4) or any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in numbers
    ):
        raise ModelError(
            "a cache must have the same shape as input and output",
            expected=f"{present.name}: {after}",
            given=f"{past.name}: {before}",
        )


def _vocabulary(settings: Settings, logits: onnx.ValueInfoProto) -> int:
    dims = _dims(logits)
    size = dims[-1] if dims else None
    said = settings.vocabulary
    if isinstance(size, int) and said is not None and size != said:
        raise ModelError(
            "the configuration contradicts the graph: the size of the vocabulary differs",
            expected=f"{said} by {settings.source}",
            given=f"{logits.name}: {_dims(logits)}",
        )
    found = size if isinstance(size, int) else said
    if found is None:
        raise ModelError("the size of the vocabulary is unknown", given=logits.name)
    return found


def _dims(info: onnx.ValueInfoProto) -> list[int | str]:
    dims = info.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
