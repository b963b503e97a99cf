"""Reads the text form of graphs, types and attributes back (see `monograph.ir.text`)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn

import numpy as np

from monograph.errors import InferError, TextError
from monograph.ir.dtype import ALL, DType, dtype
from monograph.ir.graph import Graph
from monograph.ir.op import Input, Op, Value
from monograph.ir.types import (
    Dim,
    Literal,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
)

_TOKEN = re.compile(
    r"""\s*(?:(?P<origin>//[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<blob>base64:[A-Za-z0-9+/=]*)
    |(?P<digest>\#[0-9a-f]+)
    |(?P<number>-?(?:inf\b|nan(?::[0-9a-f]{16})?\b|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?))
    |(?P<value>%(?:[A-Za-z0-9_.]+|"(?:[^"\\]|\\.)*"))
    |(?P<word>[A-Za-z_~?][A-Za-z0-9_.~]*)
    |(?P<mark>[()\[\]{}<>=:,*]))""",
    re.VERBOSE,
)
_DTYPES = {t.name for t in ALL}
MAX_NESTING = 64
MAX_DIGITS = 1000
"""The longest number that is read: Python rejects longer ones to prevent an attack."""


def parse_graph(text: str, constants: Mapping[str, Literal] | None = None) -> Graph:
    """Parse a graph. `constants` supplies the literals that the text gives by their digest."""
    reader = _Reader(text, constants or {})
    graph = reader.graph()
    reader.expect_end()
    return graph


def parse_type(text: str) -> Type:
    reader = _Reader(text, {})
    result = reader.type()
    reader.expect_end()
    return result


def parse_tensor_type(text: str) -> TensorType:
    result = parse_type(text)
    if not isinstance(result, TensorType):
        raise TextError("the type must be a tensor type", given=text)
    return result


class _Reader:
    """A recursive-descent reader; only nested sub-graphs and tuples recurse, to a bounded depth."""

    def __init__(self, text: str, constants: Mapping[str, Literal]) -> None:
        self.text = text
        self.constants = constants
        self.depth = 0
        self.position = 0
        self.kind = ""
        self.token = ""
        self.advance()

    def fail(self, message: str, **facts: Any) -> NoReturn:
        line = self.text.count("\n", 0, self.position) + 1
        raise TextError(f"line {line}: {message}", **facts)

    def advance(self) -> str:
        before = self.token
        found = _TOKEN.match(self.text, self.position)
        if found is None:
            rest = self.text[self.position :].strip()
            if rest:
                self.fail("the text has no token here", given=rest[:40])
            self.kind, self.token = "end", ""
            return before
        self.kind = found.lastgroup or ""
        self.token = found.group(self.kind)
        self.position = found.end()
        return before

    def expect(self, token: str) -> None:
        if self.token != token:
            self.fail("unexpected text", expected=token, given=self.token or "the end")
        self.advance()

    def accept(self, token: str) -> bool:
        if self.token != token:
            return False
        self.advance()
        return True

    def expect_end(self) -> None:
        if self.kind != "end":
            self.fail("nothing may follow the end of the graph", given=self.token)

    def of_kind(self, kind: str) -> str:
        if self.kind != kind:
            self.fail("unexpected text", expected=f"a {kind}", given=self.token or "the end")
        return self.advance()

    def string(self) -> str:
        return self.quoted(self.of_kind("string"))

    def quoted(self, text: str) -> str:
        """Decode a JSON string."""
        try:
            return str(json.loads(text))
        except ValueError:
            self.fail("a string must be quoted", expected='"..." as in JSON', given=text[:80])

    def nested(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.fail(
                "nested too deeply",
                expected=f"at most {MAX_NESTING} levels",
            )

    # Types

    def type(self) -> Type:
        if self.accept("("):
            items: list[Type] = []
            while not self.accept(")"):
                self.nested()
                items.append(self.type())
                self.depth -= 1
                if self.token != ")":
                    self.expect(",")
            return TupleType(tuple(items))
        word = self.of_kind("word")
        if word in ("seq", "opt"):
            self.expect("<")
            self.nested()
            element = self.type()
            self.depth -= 1
            self.expect(">")
            return SequenceType(element) if word == "seq" else OptionalType(element)
        if word == "map":
            self.expect("<")
            key = self.dtype(self.of_kind("word"))
            self.expect(",")
            value = self.dtype(self.of_kind("word"))
            self.expect(">")
            return MapType(key, value)
        return self.tensor_type(self.dtype(word))

    def dtype(self, word: str) -> DType:
        if word not in _DTYPES:
            self.fail("unknown element type", expected=" ".join(sorted(_DTYPES)), given=word)
        return dtype(word)

    def tensor_type(self, kind: DType) -> TensorType:
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return TensorType(kind, None)
        shape: list[Dim] = []
        while not self.accept("]"):
            shape.append(self.dimension())
            if self.token != "]":
                self.expect(",")
        return TensorType(kind, tuple(shape))

    def dimension(self) -> Dim:
        if self.kind == "number":
            number = self.advance()
            if not number.isdigit() or len(number) > MAX_DIGITS:
                self.fail("a size must be a number", given=number[:80])
            return int(number)
        return self.string() if self.kind == "string" else self.of_kind("word")

    # Attributes

    def attribute(self) -> Any:
        if self.kind == "number":
            return self.number()
        if self.kind == "string":
            return self.string()
        if self.accept("("):
            return self.items()
        word = self.token
        if word == "graph":
            return self.graph()
        self.of_kind("word")
        if word in ("none", "true", "false"):
            return {"none": None, "true": True, "false": False}[word]
        if word == "type":
            return self.type()
        kind = self.dtype(word)
        return self.literal(kind) if self.token == "[" else kind

    def number(self) -> int | float:
        text = self.advance()
        if len(text) > MAX_DIGITS:
            self.fail("a number is too long", given=text[:80])
        return _number(text)

    def items(self) -> tuple[Any, ...]:
        items: list[Any] = []
        self.nested()
        while not self.accept(")"):
            items.append(self.attribute())
            if self.token != ")":
                self.expect(",")
        self.depth -= 1
        return tuple(items)

    def literal(self, kind: DType) -> Literal:
        type_ = self.tensor_type(kind)
        if self.kind == "digest":
            digest = self.advance()[1:]
            if digest not in self.constants:
                self.fail(
                    "the text gives a constant by digest, and `constants` lacks it", given=digest
                )
            return self.constants[digest]
        if self.kind == "blob":
            return self.blob(type_, self.advance()[len("base64:") :])
        self.expect("[")
        items: list[Any] = []
        while not self.accept("]"):
            items.append(self.attribute())
            if self.token != "]":
                self.expect(",")
        try:
            flat = np.array(items, dtype=np.float64 if kind.is_float else None)
            return Literal(flat.astype(kind.numpy).reshape(type_.static))
        except (ValueError, TypeError, OverflowError) as e:
            self.fail(f"elements do not fit the type: {e}", expected=type_, given=items)

    def blob(self, type_: TensorType, text: str) -> Literal:
        try:
            raw = base64.b64decode(text, validate=True)
            if type_.dtype.is_string:
                return Literal(np.array(json.loads(raw), dtype=object).reshape(type_.static))
            return Literal(np.frombuffer(raw, type_.dtype.numpy).reshape(type_.static))
        except (binascii.Error, ValueError) as e:
            self.fail(f"bytes do not fit the type: {e}", expected=type_)

    # Graphs

    def graph(self) -> Graph:
        self.nested()
        self.expect("graph")
        name = self.string()
        env: dict[str, Value] = {}
        inputs = self.inputs(env)
        origins: dict[Value, str] = {}
        self.expect("{")
        while self.kind == "value":
            self.statement(env, origins)
        outputs = self.outputs(env)
        donations: list[tuple[str, str]] = []
        while self.accept("donate"):
            output = self.string()
            self.expect("=")
            donations.append((output, self.string()))
        self.expect("}")
        self.depth -= 1
        return Graph(inputs, outputs, name, origins, tuple(donations))

    def inputs(self, env: dict[str, Value]) -> tuple[Value, ...]:
        inputs: list[Value] = []
        self.expect("(")
        while not self.accept(")"):
            token = self.of_kind("value")
            self.expect(":")
            label = self.quoted(token[1:]) if token[1] == '"' else token[1:]
            env[token] = Input(label, self.type())()
            inputs.append(env[token])
            if self.token != ")":
                self.expect(",")
        return tuple(inputs)

    def outputs(self, env: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
        outputs: list[tuple[str, Value]] = []
        self.expect("return")
        while self.kind == "string":
            name = self.string()
            self.expect("=")
            outputs.append((name, self.use(env)))
            if not self.accept(","):
                break
        return tuple(outputs)

    def use(self, env: dict[str, Value]) -> Value:
        token = self.of_kind("value")
        if token not in env:
            self.fail("a value is used before it is defined", given=token)
        return env[token]

    def statement(self, env: dict[str, Value], origins: dict[Value, str]) -> None:
        target = self.of_kind("value")
        if target in env:
            self.fail("a value is defined twice", given=target)
        self.expect("=")
        op_name = self.of_kind("word")
        arguments: list[Value] = []
        if self.accept("("):
            while not self.accept(")"):
                arguments.append(self.use(env))
                if self.token != ")":
                    self.expect(",")
        value = self.applied(self.op(op_name), arguments)
        self.expect(":")
        given = self.type()
        if given != value.type:
            self.fail(
                "the type must be the one that the op infers", expected=value.type, given=given
            )
        env[target] = value
        if self.kind == "origin":
            origins[value] = self.quoted(self.token[2:].strip())
            self.advance()

    def applied(self, op: Op, arguments: list[Value]) -> Value:
        try:
            return op(*arguments)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
            # Text may give attributes of wrong Python types, which the type rules do not expect.
            self.fail(f"{op.name} does not take these attributes: {e}", given=op)

    def op(self, name: str) -> Op:
        cls = Op.registry.get(name)
        if cls is None:
            self.fail("no such op", given=name)
        attributes: dict[str, Any] = {}
        if self.accept("{"):
            while not self.accept("}"):
                key = self.of_kind("word")
                self.expect("=")
                attributes[key] = self.attribute()
                if self.token != "}":
                    self.expect(",")
        allowed = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if unknown := set(attributes) - allowed:
            self.fail(f"{name} has no such attribute", expected=sorted(allowed), given=unknown)
        try:
            return cls(**attributes)
        except (TypeError, InferError) as e:
            self.fail(f"{name}: {e}")


def _number(text: str) -> int | float:
    if text.startswith("nan:"):
        return float(np.uint64(int(text[4:], 16)).view(np.float64))
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text)
