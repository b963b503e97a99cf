"""The Mersenne twister MT19937 as code: seeding, words, and the step that makes more of them."""

from __future__ import annotations

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int

WORDS = 624
_MIDDLE = 397
_ARRAY_SEED = 19650218
_TEMPER = ((11, -1, "lshr"), (7, 0x9D2C5680, "shl"), (15, 0xEFC60000, "shl"), (18, -1, "lshr"))


def _signed(word: int) -> int:
    """A word as LLVM writes it."""
    return word - (1 << 32) if word >= 1 << 31 else word


class LlvmTwister:
    """A generator whose words lie in memory. The place of the next word is the caller's to keep."""

    start = Reg(str(WORDS), "i64")
    """The place of the first word after seeding."""

    def __init__(self, b: Builder, words: Reg) -> None:
        self.b = b
        self.words = words

    def _get(self, i: Int) -> Reg:
        return self.b.load("i32", self.b.offset(self.words, self.b.mul(i, 4)), 4)

    def _put(self, i: Int, word: Reg) -> None:
        self.b.store(word, self.b.offset(self.words, self.b.mul(i, 4)), 4)

    def _op(self, name: str, x: Reg, y: Reg | int) -> Reg:
        operand = y if isinstance(y, Reg) else _signed(y)
        return self.b.set("i32", f"{name} i32 {x}, {operand}")

    # Seeding

    def seed(self, state: Reg) -> None:
        """Counts an op's state up, and seeds by its key and the count before that.

        A key of one word seeds the first time by itself; else key and count are a list that does.
        """
        b = self.b
        turn = b.set("i64", f"atomicrmw add ptr {state}, i64 1 monotonic")
        length = b.load("i64", b.offset(state, 8), 8)
        first = b.compare("eq", turn, Reg("0", "i64"))
        short = b.compare("eq", length, Reg("1", "i64"))
        plain = b.set("i1", f"and i1 {first}, {short}")
        by_word, by_list, done = (b.new_label(n) for n in ("word", "list", "seeded"))
        b.branch(plain, by_word, by_list)
        b.label(by_word)
        key = b.load("i64", b.offset(state, 16), 8)
        self._seed_by_word(b.set("i32", f"trunc i64 {key} to i32"))
        b.jump(done)
        b.label(by_list)
        self._seed_by_list(b.offset(state, 16), length, turn)
        b.jump(done)
        b.label(done)

    def _seed_by_word(self, word: Reg) -> None:
        def one(i: Int, before: list[Reg]) -> list[Reg]:
            self._put(i, before[0])
            mixed = self._mixed(before[0], 1812433253)
            number = self.b.set("i32", f"trunc i64 {self.b.i64(self.b.add(i, 1))} to i32")
            return [self._op("add", mixed, number)]

        self.b.loop(0, WORDS, 1, one, [word])

    def _mixed(self, word: Reg, factor: int) -> Reg:
        return self._op("mul", self._op("xor", word, self._op("lshr", word, 30)), factor)

    def _seed_by_list(self, keys: Reg, length: Reg, turn: Reg) -> None:
        """Mixes the words of a list into those of a fixed seed; the turn is the last of them."""
        b = self.b
        self._seed_by_word(Reg(str(_ARRAY_SEED), "i32"))

        def key(j: Reg) -> Reg:
            last = b.compare("eq", j, length)
            near = b.set("i64", f"select i1 {last}, i64 0, i64 {j}")
            listed = b.load("i64", b.offset(keys, b.mul(near, 8)), 8)
            chosen = b.set("i64", f"select i1 {last}, i64 {turn}, i64 {listed}")
            return b.set("i32", f"trunc i64 {chosen} to i32")

        def mix(_: Int, places: list[Reg]) -> list[Reg]:
            i, j = places
            word = self._op("xor", self._get(i), self._mixed(self._get(b.sub(i, 1)), 1664525))
            word = self._op("add", word, key(j))
            self._put(i, self._op("add", word, b.set("i32", f"trunc i64 {j} to i32")))
            beyond = b.compare("sge", j, length)
            after = b.set("i64", f"select i1 {beyond}, i64 0, i64 {b.add(j, 1)}")
            return [self._after(i), after]

        def mix_again(_: Int, places: list[Reg]) -> list[Reg]:
            (i,) = places
            word = self._op("xor", self._get(i), self._mixed(self._get(b.sub(i, 1)), 1566083941))
            self._put(i, self._op("sub", word, b.set("i32", f"trunc i64 {i} to i32")))
            return [self._after(i)]

        # The list is shorter than the state.
        i, _ = b.loop(0, WORDS, 1, mix, [Reg("1", "i64"), Reg("0", "i64")])
        b.loop(0, WORDS - 1, 1, mix_again, [i])
        self._put(0, Reg(str(_signed(1 << 31)), "i32"))

    def _after(self, i: Reg) -> Reg:
        """The place after a word; behind the last one the first becomes its copy and is skipped."""
        b = self.b
        end = b.compare("sge", b.i64(b.add(i, 1)), Reg(str(WORDS), "i64"))
        b.when(end, lambda: self._put(0, self._get(WORDS - 1)))
        return b.set("i64", f"select i1 {end}, i64 1, i64 {b.add(i, 1)}")

    # Words

    def next(self, at: Reg) -> tuple[Reg, Reg]:
        """The next word, and the place of the one after it."""
        b = self.b
        used_up = b.compare("sge", at, Reg(str(WORDS), "i64"))
        b.when(used_up, self._twist)
        here = b.set("i64", f"select i1 {used_up}, i64 0, i64 {at}")
        word = self._get(here)
        for shift, mask, how in _TEMPER:
            moved = self._op(how, word, shift)
            word = self._op("xor", word, moved if mask == -1 else self._op("and", moved, mask))
        return word, b.i64(b.add(here, 1))

    def _twist(self) -> None:
        b = self.b

        def step(i: Int, following: Int, other: Int) -> None:
            high = self._op("and", self._get(i), 0x80000000)
            joined = self._op("or", high, self._op("and", self._get(following), 0x7FFFFFFF))
            odd = self._op("sub", Reg("0", "i32"), self._op("and", joined, 1))
            word = self._op("xor", self._get(other), self._op("lshr", joined, 1))
            self._put(i, self._op("xor", word, self._op("and", odd, 0x9908B0DF)))

        split = WORDS - _MIDDLE
        b.loop(0, split, 1, lambda i, _: step(i, b.add(i, 1), b.add(i, _MIDDLE)))
        b.loop(split, WORDS - 1, 1, lambda i, _: step(i, b.add(i, 1), b.sub(i, split)))
        step(WORDS - 1, 0, _MIDDLE - 1)
