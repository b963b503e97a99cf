"""Mutation operators: each takes a node of Python's syntax tree and gives texts to replace it by.

Nothing inside error messages, annotations, docstrings or assertions is changed: a test may not
depend on those.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Operator = Callable[[ast.AST], Iterator[tuple[ast.AST, str]]]
"""A node to the nodes that change, each with its new text."""
OPERATORS: dict[str, Operator] = {}
COMPARISONS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
ARITHMETIC: dict[type, str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Mod: "//"}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
REFUSALS = ("Reject", "Decline")


@dataclass(frozen=True)
class Change:
    """One mutant of a file: a stretch of its text, and what stands there instead."""

    operator: str
    line: int
    start: int
    stop: int
    before: str
    after: str


def operator(make: Operator) -> Operator:
    """Enters an operator under the name of its function."""
    OPERATORS[make.__name__] = make
    return make


@operator
def swap_comparison(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARISONS[type(node.ops[0])]
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield node, f"({left} {other} {right})"


@operator
def negate_condition(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


@operator
def drop_guard(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A condition that only refuses, or leaves early, never holds."""
    if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1:
        return
    body = node.body[0]
    plain = isinstance(body, (ast.Continue, ast.Break))
    if isinstance(body, ast.Return):
        value = body.value
        plain = value is None or isinstance(value, ast.Constant) or _refuses(value)
    if plain:
        yield node.test, "False"


def _refuses(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and (
        node.func.id in REFUSALS)  # fmt: skip


@operator
def swap_function(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """min and max, any and all, floor and ceil change places."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
        yield node.func, SWAPPED[node.func.id]
    if isinstance(node.func, ast.Attribute) and node.func.attr in SWAPPED:
        yield node.func, f"{ast.unparse(node.func.value)}.{SWAPPED[node.func.attr]}"


@operator
def round_otherwise(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A division that rounds down rounds up, and the other way round."""
    if _rounds_up(node):
        assert isinstance(node, ast.UnaryOp)
        assert isinstance(node.operand, ast.BinOp)
        left = node.operand.left
        assert isinstance(left, ast.UnaryOp)
        yield node, f"({ast.unparse(left.operand)} // {ast.unparse(node.operand.right)})"
    elif _rounds_down(node):
        assert isinstance(node, ast.BinOp)
        yield node, f"(-(-({ast.unparse(node.left)}) // {ast.unparse(node.right)}))"


def _rounds_down(node: ast.AST) -> bool:
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    return divides and not isinstance(node.left, ast.UnaryOp)  # type: ignore[attr-defined]


def _rounds_up(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.BinOp)
        and isinstance(node.operand.op, ast.FloorDiv)
        and isinstance(node.operand.left, ast.UnaryOp)
    )


@operator
def change_constant(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A whole number is one more, or one less."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, f"({node.value + 1})"
        yield node, f"({node.value - 1})"


@operator
def change_arithmetic(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _text(node):
        other = ARITHMETIC[type(node.op)]
        yield node, f"({ast.unparse(node.left)} {other} {ast.unparse(node.right)})"


def _text(node: ast.BinOp) -> bool:
    """Tell whether operands are texts, tuples or lists, which are not subtracted."""
    plain = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    sides = (node.left, node.right)
    return any(isinstance(s, plain) or (isinstance(s, ast.Constant) and isinstance(s.value, str))
               for s in sides)  # fmt: skip


@operator
def drop_clause(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """One part of an `and` or an `or` goes."""
    if isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        for i in range(len(node.values)):
            rest = [f"({ast.unparse(v)})" for j, v in enumerate(node.values) if j != i]
            yield node, f"({word.join(rest)})"


@operator
def skip_call(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A statement that is a call is left out."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


@operator
def reverse_order(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return
    if node.func.id == "reversed" and len(node.args) == 1:
        yield node, f"iter({ast.unparse(node.args[0])})"
    if node.func.id == "sorted":
        yield node, f"{ast.unparse(node)}[::-1]"


@operator
def change_axis(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The first of something is the last, and the other way round."""
    if not isinstance(node, ast.Subscript):
        return
    index = ast.unparse(node.slice)
    if index in ("0", "-1"):
        yield node.slice, "-1" if index == "0" else "0"


@operator
def swap_truth(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)


@operator
def swap_branches(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.IfExp):
        parts = (node.orelse, node.test, node.body)
        a, test, b = (ast.unparse(p) for p in parts)
        yield node, f"({a} if {test} else {b})"


# All mutants of a text --------------------------------------------------------------------------


def changes(source: str) -> list[Change]:
    """Every mutant of a file's text that an operator makes."""
    tree = ast.parse(source)
    offsets = _offsets(source)
    found = []
    for node in _interesting(tree):
        for name, make in OPERATORS.items():
            for target, text in make(node):
                change = _change(name, target, text, source, offsets)
                if change.before != change.after:
                    found.append(change)
    return list(dict.fromkeys(found))


def apply(source: str, change: Change) -> str:
    """The text of a mutant."""
    return source[: change.start] + change.after + source[change.stop :]


def _offsets(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _change(name: str, node: ast.AST, text: str, source: str, offsets: list[int]) -> Change:
    assert isinstance(node, (ast.expr, ast.stmt))
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = _position(source, offsets, node.lineno, node.col_offset)
    stop = _position(source, offsets, node.end_lineno, node.end_col_offset)
    return Change(name, node.lineno, start, stop, source[start:stop], text)


def _position(source: str, offsets: list[int], line: int, column: int) -> int:
    """A place in the text; columns of the tree count bytes."""
    text = source[offsets[line - 1] : offsets[line]]
    return offsets[line - 1] + len(text.encode()[:column].decode())


def _interesting(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may change, in the order of the text."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if _left_out(node):
            continue
        yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            children = list(node.body)  # no decorators, defaults and annotations
        elif isinstance(node, ast.AnnAssign):
            children = [] if node.value is None else [node.value]
        elif isinstance(node, ast.ClassDef):
            children = list(node.body)
        stack.extend(reversed(children))


def _left_out(node: ast.AST) -> bool:
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Call) and (_refuses(node) or _logs(node))


def _logs(node: ast.Call) -> bool:
    return "log" in ast.unparse(node.func).lower().split(".")[0]
