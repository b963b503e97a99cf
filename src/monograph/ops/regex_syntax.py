"""The syntax of regular expressions, RE2's, as trees. `monograph.ops.regex` matches them.

Not taken: `\\C` (a single byte) and Unicode scripts such as `\\p{Greek}` (general categories such
as `\\p{Lu}` are). Back-references and look-around do not exist in RE2 either.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from monograph.errors import InferError

MAX_REPEAT = 1000
MAX_NESTING = 60

Range: TypeAlias = tuple[int, int]

_PERL: dict[str, tuple[Range, ...]] = {
    "d": ((0x30, 0x39),),
    "s": ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20)),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
}
_POSIX: dict[str, tuple[Range, ...]] = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": ((0x30, 0x39),),
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}
_CATEGORIES = {
    "C": "cfnos",
    "L": "lmotu",
    "M": "cen",
    "N": "dlo",
    "P": "cdefios",
    "S": "ckmo",
    "Z": "lps",
}
"""Unicode's general categories: the second letters that each first one goes with."""
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


@dataclass(frozen=True)
class CharSet:
    """A set of characters: ranges, Unicode categories and other sets, perhaps all negated."""

    ranges: tuple[Range, ...] = ()
    categories: tuple[str, ...] = ()
    sets: tuple[CharSet, ...] = ()
    negated: bool = False
    fold: bool = False

    def __contains__(self, character: str) -> bool:
        variants = {character, character.lower(), character.upper()} if self.fold else {character}
        return any(self._holds(v) for v in variants if len(v) == 1) != self.negated

    def _holds(self, character: str) -> bool:
        code = ord(character)
        if any(lo <= code <= hi for lo, hi in self.ranges):
            return True
        if self.categories and unicodedata.category(character).startswith(self.categories):
            return True
        return any(character in s for s in self.sets)


@dataclass(frozen=True)
class Assertion:
    """An empty match at a place: begin, end, line begin, line end, word boundary or not."""

    kind: str

    def holds(self, before: str, after: str) -> bool:
        """Return True if it holds between two characters; "" is an edge of the text."""
        if self.kind == "begin":
            return not before
        if self.kind == "end":
            return not after
        if self.kind == "line begin":
            return not before or before == "\n"
        if self.kind == "line end":
            return not after or after == "\n"
        boundary = _is_word(before) != _is_word(after)
        return boundary if self.kind == "boundary" else not boundary


def _is_word(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


@dataclass(frozen=True)
class Sequence:
    items: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Choice:
    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeat:
    body: Tree
    low: int
    high: int | None


Tree: TypeAlias = CharSet | Assertion | Sequence | Choice | Repeat


@dataclass(frozen=True)
class _Flags:
    fold: bool = False
    lines: bool = False
    dot_newline: bool = False


class Parser:
    """A recursive-descent parser of RE2's syntax; the nesting of groups is bounded."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0

    def fail(self, message: str) -> NoReturn:
        raise InferError(
            f"the pattern is not accepted: {message} (at character {self.at})",
            expected="a regular expression in RE2's syntax",
            given=self.pattern[:200],
        )

    def peek(self, count: int = 1) -> str:
        return self.pattern[self.at : self.at + count]

    def take(self) -> str:
        if self.at >= len(self.pattern):
            self.fail("it ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def accept(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def until(self, end: str) -> str:
        stop = self.pattern.find(end, self.at)
        if stop < 0:
            self.fail(f"{end!r} is missing")
        found = self.pattern[self.at : stop]
        self.at = stop + len(end)
        return found

    def parse(self) -> Tree:
        tree = self.choice(_Flags())
        if self.at < len(self.pattern):
            self.fail("an unexpected ')'")
        return tree

    def choice(self, flags: _Flags) -> Tree:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.fail(f"groups are nested deeper than {MAX_NESTING}")
        branches: list[Tree] = []
        items: list[Tree] = []
        while self.at < len(self.pattern) and self.peek() != ")":
            if self.accept("|"):
                branches.append(Sequence(tuple(items)))
                items = []
            elif self.accept("(?"):
                flags = self.group_or_flags(flags, items)
            else:
                items.extend(self.repeated(item) for item in self.atoms(flags))
        self.depth -= 1
        branches.append(Sequence(tuple(items)))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def group_or_flags(self, flags: _Flags, items: list[Tree]) -> _Flags:
        """After `(?`: a group, or flags for the rest of the enclosing one."""
        if self.accept("P<") or self.accept("<"):
            if not self.until(">").isidentifier():
                self.fail("not the name of a group")
            items.append(self.repeated(self.group(flags)))
            return flags
        changed, on = flags, True
        while True:
            letter = self.take()
            if letter == ")":
                return changed
            if letter == ":":
                items.append(self.repeated(self.group(changed)))
                return flags
            if letter == "-" and on:
                on = False
            elif letter in "imsU":
                changed = _Flags(
                    on if letter == "i" else changed.fold,
                    on if letter == "m" else changed.lines,
                    on if letter == "s" else changed.dot_newline,
                )
            else:
                self.fail(f"unknown group (?{letter}")

    def group(self, flags: _Flags) -> Tree:
        tree = self.choice(flags)
        if not self.accept(")"):
            self.fail("')' is missing")
        return tree

    def repeated(self, body: Tree) -> Tree:
        bounds = self.bounds()
        if bounds is None:
            return body
        self.accept("?")  # lazy or greedy: a full match is the same
        if (self.peek() and self.peek() in "*+?") or self.bounds() is not None:
            self.fail("a repetition is repeated")
        return Repeat(body, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.accept(mark):
                return bounds
        if self.peek() != "{":
            return None
        stop = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : max(stop, self.at + 1)].partition(",")
        digits = low + high
        if not low or not (digits.isascii() and digits.isdigit()):
            return None  # a brace that stands for itself
        if len(low) > 4 or len(high) > 4 or max(int(low), int(high or 0)) > MAX_REPEAT:
            self.fail(f"a repetition of more than {MAX_REPEAT}")
        if high and int(high) < int(low):
            self.fail("a repetition's bounds are reversed")
        self.at = stop + 1
        return int(low), int(high) if high else (None if comma else int(low))

    def atoms(self, flags: _Flags) -> Iterator[Tree]:
        if self.bounds() is not None:
            self.fail("nothing to repeat")
        character = self.take()
        if character == "(":
            yield self.group(flags)
        elif character == "[":
            yield self.bracket(flags)
        elif character == ".":
            yield CharSet(() if flags.dot_newline else ((10, 10),), negated=True)
        elif character == "^":
            yield Assertion("line begin" if flags.lines else "begin")
        elif character == "$":
            yield Assertion("line end" if flags.lines else "end")
        elif character != "\\":
            yield self.literal(character, flags)
        elif self.accept("Q"):
            end = self.pattern.find("\\E", self.at)
            quoted = self.pattern[self.at : end if end >= 0 else len(self.pattern)]
            self.at += len(quoted) + (2 if end >= 0 else 0)
            yield from (self.literal(c, flags) for c in quoted)
        else:
            yield self.escape(flags)

    def literal(self, character: str, flags: _Flags) -> CharSet:
        code = ord(character)
        return CharSet(((code, code),), fold=flags.fold)

    def escape(self, flags: _Flags) -> Tree:
        kinds = {"A": "begin", "z": "end", "b": "boundary", "B": "no boundary"}
        if self.peek() in kinds:
            return Assertion(kinds[self.take()])
        found = self.class_escape(flags)
        return found if found is not None else self.literal(self.character_escape(), flags)

    def class_escape(self, flags: _Flags) -> CharSet | None:
        """`\\d`, `\\pL` and their kind; None where the escape is one character."""
        letter = self.peek()
        if letter and letter.lower() in _PERL:
            self.at += 1
            return CharSet(_PERL[letter.lower()], negated=letter.isupper(), fold=flags.fold)
        if letter not in ("p", "P"):
            return None
        self.at += 1
        name = self.until("}") if self.accept("{") else self.take()
        negated = (letter == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name == "Any":
            return CharSet(negated=not negated)
        first, second = name[:1], name[1:]
        if first not in _CATEGORIES or (second and second not in [*_CATEGORIES[first]]):
            self.fail(f"unknown or unsupported Unicode class {name!r}")
        return CharSet(categories=(name,), negated=negated, fold=flags.fold)

    def character_escape(self) -> str:
        character = self.take()
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self.until("}") if self.accept("{") else self.take() + self.take()
            if not digits or not all(c in "0123456789abcdefABCDEF" for c in digits):
                self.fail("not a hexadecimal number")
            if len(digits) > 8 or int(digits, 16) > 0x10FFFF:
                self.fail("not a character's number")
            return chr(int(digits, 16))
        if character in "01234567":
            octal = character
            while len(octal) < 3 and self.peek() and self.peek() in "01234567":
                octal += self.take()
            if character != "0" and len(octal) < 3:
                self.fail("RE2 has no back-references")
            return chr(int(octal, 8))
        if character.isascii() and character.isalnum():
            self.fail(f"unknown escape \\{character}")
        return character

    def bracket(self, flags: _Flags) -> CharSet:
        negated = self.accept("^")
        ranges: list[Range] = []
        sets: list[CharSet] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if self.accept("[:"):
                name = self.until(":]")
                if name.removeprefix("^") not in _POSIX:
                    self.fail(f"unknown class [:{name}:]")
                posix = _POSIX[name.removeprefix("^")]
                sets.append(CharSet(posix, negated=name.startswith("^"), fold=flags.fold))
                continue
            low = self.bracket_item(flags)
            if isinstance(low, CharSet):
                sets.append(low)
                continue
            high = low
            if self.peek() == "-" and self.peek(2)[1:] not in ("", "]"):
                self.at += 1
                upper = self.bracket_item(flags)
                if isinstance(upper, CharSet) or upper < low:
                    self.fail("not a range of characters")
                high = upper
            ranges.append((ord(low), ord(high)))
        self.at += 1
        return CharSet(tuple(ranges), sets=tuple(sets), negated=negated, fold=flags.fold)

    def bracket_item(self, flags: _Flags) -> CharSet | str:
        character = self.take()
        if character != "\\":
            return character
        return self.class_escape(flags) or self.character_escape()
