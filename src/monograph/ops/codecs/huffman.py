"""Huffman codes as JPEG has them, and the bits they are read from."""

from __future__ import annotations

from monograph.ops.codecs.read import numbers, refuse

HuffmanTable = dict[tuple[int, int], int]
"""Symbols by (length, code)."""


def read_tables(body: bytes) -> dict[int, HuffmanTable]:
    """The tables of a segment, by 16 * class + number."""
    tables: dict[int, HuffmanTable] = {}
    offset = 0
    while offset < len(body):
        counts = numbers(">16B", body, offset + 1)
        symbols = numbers(f">{sum(counts)}B", body, offset + 17)
        table: HuffmanTable = {}
        code, taken = 0, 0
        for length, count in enumerate(counts, 1):
            for _ in range(count):
                table[length, code] = symbols[taken]
                code, taken = code + 1, taken + 1
            code *= 2
        tables[body[offset]] = table
        offset += 17 + taken
    return tables


class BitReader:
    """The bits of a scan: a zero byte after 0xFF is dropped, and a marker ends them."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset
        self.held, self.count = 0, 0

    def bit(self) -> int:
        if self.count == 0:
            self.held, self.count = self._byte(), 8
        self.count -= 1
        return (self.held >> self.count) & 1

    def _byte(self) -> int:
        if self.offset >= len(self.data):
            refuse("it ends too early", given=len(self.data))
        byte = self.data[self.offset]
        self.offset += 1
        if byte == 0xFF:
            if self.data[self.offset : self.offset + 1] != b"\0":
                refuse("a marker within the data")
            self.offset += 1
        return byte

    def symbol(self, table: HuffmanTable) -> int:
        code = 0
        for length in range(1, 17):
            code = code * 2 + self.bit()
            found = table.get((length, code))
            if found is not None:
                return found
        refuse("a code that no symbol has", given=code)

    def signed(self, size: int) -> int:
        """A number of this many bits; a leading 0 marks it as negative."""
        value = 0
        for _ in range(size):
            value = value * 2 + self.bit()
        return value if size == 0 or value >> (size - 1) else value - 2**size + 1

    def restart(self, markers: range) -> None:
        """Goes past a restart marker."""
        found = self.data[self.offset : self.offset + 2]
        if len(found) < 2 or found[0] != 0xFF or found[1] not in markers:
            refuse("a restart marker is missing", given=found)
        self.offset += 2
        self.count = 0
