"""Draws mutants: evenly over the groups, files by the number of their lines, operators evenly."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants.operators import Change, apply, changes
from tests.mutants.targets import GROUPS, files


@dataclass(frozen=True)
class Mutant:
    """A change of one file, under an id that stays when lines move."""

    id: str
    group: str
    path: str
    change: Change

    def __str__(self) -> str:
        before, after = (" ".join(t.split()) for t in (self.change.before, self.change.after))
        return (
            f"{self.id} {self.group} {self.path}:{self.change.line} {self.change.operator}:"
            f" {before[:80]} -> {after[:90]}"
        )


@cache
def mutants_of(root: Path, group: str, path: Path) -> list[Mutant]:
    """Every mutant of a file that still parses."""
    source = path.read_text()
    name = str(path.relative_to(root))
    lines = source.splitlines()
    seen: dict[str, int] = {}
    found = []
    for change in changes(source):
        text = f"{name}|{change.operator}|{lines[change.line - 1].strip()}|{change.after}"
        seen[text] = seen.get(text, 0) + 1
        digest = hashlib.sha256(f"{text}|{seen[text]}".encode()).hexdigest()[:10]
        try:
            compile(apply(source, change), name, "exec")
        except (SyntaxError, ValueError):
            continue
        found.append(Mutant(digest, group, name, change))
    return found


def draw(root: Path, groups: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants, drawn by a seed."""
    drawn: list[Mutant] = []
    for i, group in enumerate(groups):
        generator = random.Random(f"{seed}:{group}")
        paths = list(files(root, GROUPS[group]))
        weights = [len(p.read_text().splitlines()) for p in paths]
        wanted = count * (i + 1) // len(groups) - count * i // len(groups)
        taken: set[str] = set()
        while len(taken) < wanted:
            path = generator.choices(paths, weights)[0]
            every = mutants_of(root, group, path)
            if not every:
                continue
            kind = generator.choice(sorted({m.change.operator for m in every}))
            mutant = generator.choice([m for m in every if m.change.operator == kind])
            if mutant.id not in taken:
                taken.add(mutant.id)
                drawn.append(mutant)
    return drawn


def find(root: Path, groups: Sequence[str], ids: Sequence[str]) -> list[Mutant]:
    """The mutants with these ids."""
    found = {
        m.id: m
        for group in groups
        for path in files(root, GROUPS[group])
        for m in mutants_of(root, group, path)
        if m.id in ids
    }
    if missing := [i for i in ids if i not in found]:
        raise SystemExit(f"no such mutant: {', '.join(missing)}")
    return [found[i] for i in ids]
