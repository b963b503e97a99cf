"""A bounded number of mutants; `python -m tests.fuzz.harness` tries as many as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import onnx

from tests.fuzz.harness import fuzz, make_mutant
from tests.fuzz.mutate import mutate_bytes, mutate_structure
from tests.fuzz.seeds import seeds
from tests.samples import SEED

COUNT = 300


def test_only_our_errors_come_out(tmp_path: Path):
    print(f"seed {SEED}: set MONOGRAPH_TEST_SEED to repeat or to vary")
    report = fuzz(SEED, COUNT, jobs=2, folder=tmp_path, progress=False)
    assert sum(report.outcomes.values()) == COUNT
    assert not report.findings, f"seed {SEED}: {report.findings}"
    # Mutants that are all refused at once would test nothing but the parser.
    assert report.outcomes["ran"] > COUNT / 20
    assert report.outcomes["refused"] > COUNT / 20


def test_mutants_repeat():
    assert [make_mutant(3, i) for i in range(20)] == [make_mutant(3, i) for i in range(20)]
    assert len({make_mutant(3, i) for i in range(20)}) > 15


def test_seeds_are_valid_and_many():
    kinds = {node.op_type for raw in seeds() for node in onnx.ModelProto.FromString(raw).graph.node}
    assert len(seeds()) > 1000
    assert len(kinds) > 150


def test_mutations_change_things():
    raw, donor = seeds()[0], seeds()[-1]
    changed = sum(mutate_bytes(raw, donor, random.Random(i)) != raw for i in range(50))
    assert changed > 40
    changed = 0
    for i in range(50):
        model = onnx.ModelProto.FromString(raw)
        mutate_structure(model, onnx.ModelProto.FromString(donor), random.Random(i))
        changed += model.SerializeToString() != raw
    assert changed > 35
