"""The Mersenne twister MT19937 as lines of a kernel: seeding, and the step that makes more words.

One program has the generator. Seeding goes from word to word in registers; a step makes all 624
words in three rounds, each of which needs the words of the one before. No round reads what it
writes, and a barrier is between any two.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.triton.emit.indexed_load import table
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import KernelWriter
from monograph.ir import Array

WORDS = 624
LANES = 256
"""At least the words of a round."""
_MIDDLE = 397
_SPLIT = WORDS - _MIDDLE
_ROUNDS = ((0, _SPLIT), (_SPLIT, _SPLIT), (2 * _SPLIT, WORDS - 2 * _SPLIT))
_ARRAY_SEED = 19650218
_ALL = (1 << 32) - 1
_TEMPER = (
    ("{} >> 11", _ALL),
    ("{} << 7", 0x9D2C5680),
    ("{} << 15", 0xEFC60000),
    ("{} >> 18", _ALL),
)


def word(value: int) -> str:
    """A literal word."""
    return f"tl.full((), {value}, tl.uint32)"


class TritonTwister:
    """A generator whose words lie in memory from a pointer on, in lists of 624.

    Each of its methods writes lines, and expects all threads to see what came before.
    """

    def __init__(self, k: KernelWriter, words: str) -> None:
        self.k = k
        self.w: Writer = k.w
        self.words = words

    def get(self, place: str, mask: str | None = None) -> str:
        """Words by their places."""
        inside = f", mask={mask}, other=0" if mask else ""
        name = self.w.name("word")
        load = f"tl.load({self.words} + {place}{inside})"
        self.w.line(f"{name} = {load}.to(tl.uint32, bitcast=True)")
        return name

    def put(self, place: str, text: str, mask: str | None = None) -> None:
        inside = f", mask={mask}" if mask else ""
        made = f"({text}).to(tl.int32, bitcast=True)"
        self.w.line(f"tl.store({self.words} + {place}, {made}{inside})")

    def barrier(self) -> None:
        """Lets every thread see what the others wrote."""
        self.w.line("tl.debug_barrier()")

    # Seeding

    def seed(self, state: str) -> None:
        """Counts an op's state up, and seeds the first list by its key and the count before that.

        A key of one word seeds the first time by itself; else key and count are a list that does.
        The second list is used on the way.
        """
        w = self.w
        w.line(f"turn = tl.load({state})")
        w.line(f"length = tl.load({state} + 1)")
        self.barrier()
        w.line(f"tl.store({state}, turn + 1)")
        with w.block("if (turn == 0) & (length == 1)"):
            w.line(f"x = tl.load({state} + 2).to(tl.uint32)")
            with w.block(f"for i in range({WORDS})"):
                self.put("i", "x")
                w.line(f"x = {_mixed('x', 1812433253)} + (i + 1)")
        with w.block("else"):
            self._seed_by_list(state)
        self.barrier()

    def _seed_by_list(self, state: str) -> None:
        """Mixes the words of a list into those of a fixed seed; the turn is the last of them."""
        w = self.w
        fixed = table(self.k, _seeded(_ARRAY_SEED))
        w.line(f"x = {word(_ARRAY_SEED)}")
        w.line(f"second = {word(0)}")
        w.line("j = turn * 0")

        def mix(given: str) -> None:
            w.line(f"listed = tl.load({state} + 2 + tl.where(j < length, j, 0))")
            w.line("key = tl.where(j < length, listed, turn).to(tl.uint32)")
            w.line(f"x = ({given} ^ {_mixed('x', 1664525)}) + key + j.to(tl.uint32)")
            w.line("j = tl.where(j < length, j + 1, 0)")

        # The list is shorter than the words. Behind the last of them comes the second one again.
        with w.block(f"for i in range(1, {WORDS})"):
            mix(f"tl.load({fixed} + i).to(tl.uint32, bitcast=True)")
            self.put(f"{WORDS} + i", "x")
            w.line("second = tl.where(i == 1, x, second)")
        mix("second")
        w.line("second = x")
        self.barrier()
        with w.block(f"for i in range(2, {WORDS})"):
            w.line(f"x = ({self.get(f'{WORDS} + i')} ^ {_mixed('x', 1566083941)}) - i")
            self.put("i", "x")
        w.line(f"x = (second ^ {_mixed('x', 1566083941)}) - {word(1)}")
        self.put("1", "x")
        self.put("0", word(1 << 31))

    # Words

    def twist(self, old: str, new: str) -> None:
        """Makes a list of words from another; both by the places where they start."""
        w = self.w
        lane = w.let(f"tl.arange(0, {LANES})", "lane")
        for start, count in _ROUNDS:
            i, mask = w.let(f"{lane} + {start}", "i"), w.let(f"{lane} < {count}", "m")
            following = f"{old} + {i} + 1"
            if start + count == WORDS:  # behind the last one comes the first, a new one
                following = f"tl.where({i} == {WORDS - 1}, {new}, {following})"
            other = f"{old} + {i} + {_MIDDLE}" if start == 0 else f"{new} + {i} - {_SPLIT}"
            high, low = self.get(f"{old} + {i}", mask), self.get(f"({following})", mask)
            far = self.get(f"({other})", mask)
            joined = w.name("joined")
            w.line(f"{joined} = ({high} & {word(1 << 31)}) | ({low} & {word((1 << 31) - 1)})")
            odd = f"tl.where(({joined} & 1) != 0, {word(0x9908B0DF)}, {word(0)})"
            self.put(f"{new} + {i}", f"{far} ^ ({joined} >> 1) ^ {odd}", mask)
            self.barrier()

    def unit(self, place: str, mask: str | None) -> str:
        """Numbers from 0 to 1 with 53 bits, each of two words that lie at a place."""
        parts = []
        for offset, shift in ((0, 5), (1, 6)):
            found = self.get(f"{place} + {offset}", mask)
            for moved, bits in _TEMPER:
                own = f"({moved.format(found)}) & {word(bits)}"
                self.w.line(f"{found} = {found} ^ ({own})")
            parts.append(f"({found} >> {shift}).to(tl.float64)")
        name = self.w.name("unit")
        self.w.line(f"{name} = ({parts[0]} * {2.0**26} + {parts[1]}) * {2.0**-53}")
        return name


def _mixed(name: str, factor: int) -> str:
    return f"(({name} ^ ({name} >> 30)) * {word(factor)})"


def _seeded(seed: int) -> Array:
    """The words that a word seeds, as they are in memory."""
    words = [seed]
    for i in range(1, WORDS):
        words.append(((words[-1] ^ (words[-1] >> 30)) * 1812433253 + i) & 0xFFFFFFFF)
    return np.array(words, np.uint32).view(np.int32)
