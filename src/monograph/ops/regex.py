"""Regular expressions in RE2's syntax, matched in time linear in the text.

A pattern comes out of a model file, so it may be hostile: Python's own `re` would backtrack for
ever on some. Here a pattern becomes an automaton of bounded size whose states are followed all at
once. No ops live here; `monograph.ops.text` uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from monograph.ops.regex_syntax import Assertion, CharSet, Choice, Parser, Repeat, Sequence, Tree

MAX_STATES = 5000
MAX_CACHED = 20_000


@dataclass(frozen=True)
class _Split:
    """Goes on in several states at once, for free."""

    targets: tuple[int, ...]


@dataclass(frozen=True)
class _Step:
    """Goes on past one character of a set, or, for free, where an assertion holds."""

    test: CharSet | Assertion
    target: int


class CompiledRegex:
    """A compiled pattern. State 0 is the match; `start` is where a text begins."""

    def __init__(self, pattern: str) -> None:
        self.parser = Parser(pattern)
        self.states: list[_Split | _Step] = [_Split(())]
        self.start = self.compile(self.parser.parse(), 0)
        self.closures: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self.steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self.has_assertions = any(
            isinstance(s, _Step) and isinstance(s.test, Assertion) for s in self.states
        )

    def add(self, state: _Split | _Step) -> int:
        if len(self.states) >= MAX_STATES:
            self.parser.fail(f"it needs more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1

    def compile(self, tree: Tree, target: int) -> int:
        """Return the state that matches the tree and then goes on at `target`."""
        if isinstance(tree, (CharSet, Assertion)):
            return self.add(_Step(tree, target))
        if isinstance(tree, Sequence):
            for item in reversed(tree.items):
                target = self.compile(item, target)
            return target
        if isinstance(tree, Choice):
            return self.add(_Split(tuple(self.compile(item, target) for item in tree.items)))
        return self.compile_repeat(tree, target)

    def compile_repeat(self, tree: Repeat, target: int) -> int:
        if tree.high is None:
            loop = self.add(_Split(()))
            self.states[loop] = _Split((self.compile(tree.body, loop), target))
            target = loop
        else:
            leave = target
            for _ in range(tree.high - tree.low):
                target = self.add(_Split((self.compile(tree.body, target), leave)))
        for _ in range(tree.low):
            target = self.compile(tree.body, target)
        return target

    def closure(self, kernel: frozenset[int], before: str, after: str) -> frozenset[int]:
        """Return every state reachable for free between two characters."""
        key = (kernel, before, after) if self.has_assertions else (kernel, "", "")
        known = self.closures.get(key)
        if known is not None:
            return known
        seen = set(kernel)
        stack = list(kernel)
        while stack:
            state = self.states[stack.pop()]
            targets: tuple[int, ...] = ()
            if isinstance(state, _Split):
                targets = state.targets
            elif isinstance(state.test, Assertion) and state.test.holds(before, after):
                targets = (state.target,)
            fresh = [t for t in targets if t not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        if len(self.closures) >= MAX_CACHED:
            self.closures.clear()
        return self.closures.setdefault(key, frozenset(seen))

    def step(self, states: frozenset[int], character: str) -> frozenset[int]:
        known = self.steps.get((states, character))
        if known is not None:
            return known
        found = (self.states[i] for i in states)
        reached = frozenset(
            s.target
            for s in found
            if isinstance(s, _Step) and isinstance(s.test, CharSet) and character in s.test
        )
        if len(self.steps) >= MAX_CACHED:
            self.steps.clear()
        return self.steps.setdefault((states, character), reached)

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches the whole text."""
        current = frozenset((self.start,))
        before = ""
        for character in text:
            current = self.step(self.closure(current, before, character), character)
            if not current:
                return False
            before = character
        return 0 in self.closure(current, before, "")


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> CompiledRegex:
    return CompiledRegex(pattern)
