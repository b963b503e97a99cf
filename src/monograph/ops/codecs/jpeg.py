"""JPEG: baseline, grey or colour, any sampling; the arithmetic is that of the common library.

Decoders may differ in the last bit: the standard bounds the inverse transform without fixing it.
This one uses the integer transform with 13-bit constants, the smooth doubling of chroma and the
16-bit colour conversion that nearly every program uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monograph.ir import Array
from monograph.ops.codecs.huffman import BitReader, HuffmanTable, read_tables
from monograph.ops.codecs.read import check_size, numbers, pixels, refuse

_ZIGZAG = sorted(
    range(64), key=lambda i: (i // 8 + i % 8, (i // 8, i % 8)[(i // 8 + i % 8) % 2 == 0])
)
_RESTARTS = range(0xD0, 0xD8)


@dataclass
class _Component:
    """A channel: how densely it is sampled, its tables, and its coefficients."""

    across: int
    down: int
    quantiser: int
    dc: int = 0
    ac: int = 0
    previous: int = 0
    blocks: Array = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass
class _Frame:
    """What the segments before the data say."""

    width: int = 0
    height: int = 0
    components: dict[int, _Component] = field(default_factory=dict)
    quantisers: dict[int, Array] = field(default_factory=dict)
    huffman: dict[int, HuffmanTable] = field(default_factory=dict)
    restart: int = 0
    plain_rgb: bool = False


def decode_jpeg(data: bytes) -> Array:
    frame, offset = _Frame(), 2
    while True:
        marker, length = numbers(">HH", data, offset)
        if marker >> 8 != 0xFF or length < 2:
            refuse("a marker", given=hex(marker))
        segment = pixels(data, offset + 4, length - 2).tobytes()
        offset += 2 + length
        if marker == 0xFFDA:
            _scan(frame, segment, data, offset)
            return _image(frame)
        _segment(frame, marker & 0xFF, segment)


def _segment(frame: _Frame, kind: int, body: bytes) -> None:
    if kind in (0xC0, 0xC1):
        _start(frame, body)
    elif kind in range(0xC0, 0xD0) and kind not in (0xC4, 0xC8, 0xCC):
        refuse("a JPEG that is not baseline", given=hex(kind))
    elif kind == 0xC4:
        frame.huffman.update(read_tables(body))
    elif kind == 0xDB:
        _quantisers(frame, body)
    elif kind == 0xDD:
        (frame.restart,) = numbers(">H", body, 0)
    elif kind == 0xEE and body.startswith(b"Adobe"):
        frame.plain_rgb = numbers(">B", body, 11) == (0,)


def _quantisers(frame: _Frame, body: bytes) -> None:
    offset = 0
    while offset < len(body):
        wide, index = divmod(body[offset], 16)
        layout = ">64H" if wide else ">64B"
        frame.quantisers[index] = np.array(numbers(layout, body, offset + 1), np.int32)
        offset += 129 if wide else 65


def _start(frame: _Frame, body: bytes) -> None:
    depth, frame.height, frame.width, count = numbers(">BHHB", body, 0)
    check_size(frame.width, frame.height)
    if depth != 8 or count not in (1, 3) or frame.components:
        refuse("its channels", expected="1 or 3 of 8 bits", given=(count, depth))
    for i in range(count):
        name, sampling, quantiser = numbers(">BBB", body, 6 + 3 * i)
        across, down = divmod(sampling, 16)
        if across not in (1, 2, 4) or down not in (1, 2, 4):
            refuse("its sampling", given=(across, down))
        frame.components[name] = _Component(across, down, quantiser)


def _scan(frame: _Frame, header: bytes, data: bytes, offset: int) -> None:
    """Reads the coefficients of every block."""
    (count,) = numbers(">B", header, 0)
    if not frame.components or count != len(frame.components):
        refuse("a scan of some of its channels", expected=len(frame.components), given=count)
    for i in range(count):
        name, tables = numbers(">BB", header, 1 + 2 * i)
        if name not in frame.components:
            refuse("a channel that it does not have", given=name)
        frame.components[name].dc, frame.components[name].ac = divmod(tables, 16)
    parts = list(frame.components.values())
    if len(parts) == 1:
        parts[0].across = parts[0].down = 1
    wide, high = (max(getattr(c, a) for c in parts) for a in ("across", "down"))
    columns, rows = -(-frame.width // (8 * wide)), -(-frame.height // (8 * high))
    # A block takes two bits at least: the file bounds the memory.
    blocks = columns * rows * sum(c.across * c.down for c in parts)
    if blocks > 4 * (len(data) - offset) + 4:
        refuse("it ends too early", expected=f"{blocks} blocks", given=len(data) - offset)
    for c in parts:
        c.blocks = np.zeros((rows * c.down, columns * c.across, 64), np.int32)
    bits = BitReader(data, offset)
    for unit in range(columns * rows):
        if frame.restart and unit and unit % frame.restart == 0:
            bits.restart(_RESTARTS)
            for c in parts:
                c.previous = 0
        for c in parts:
            for k in range(c.across * c.down):
                y = unit // columns * c.down + k // c.across
                x = unit % columns * c.across + k % c.across
                _block(frame, c, bits, c.blocks[y, x])


def _block(frame: _Frame, c: _Component, bits: BitReader, block: Array) -> None:
    """The coefficients of one block, in zigzag order."""
    dc, ac = frame.huffman.get(c.dc), frame.huffman.get(16 + c.ac)
    if dc is None or ac is None:
        refuse("a Huffman table is missing")
    c.previous = (c.previous + bits.signed(bits.symbol(dc) & 15) + 2**15) % 2**16 - 2**15
    block[0] = c.previous
    k = 1
    while k < 64:
        zeros, size = divmod(bits.symbol(ac), 16)
        if size == 0 and zeros != 15:
            return
        k += zeros
        if k > 63:
            refuse("too many coefficients in a block")
        block[k] = bits.signed(size) if size else 0
        k += 1


def _image(frame: _Frame) -> Array:
    parts = list(frame.components.values())
    wide, high = (max(getattr(c, a) for c in parts) for a in ("across", "down"))
    planes = []
    for c in parts:
        if c.quantiser not in frame.quantisers:
            refuse("a quantiser is missing", given=c.quantiser)
        plane = _inverse_transform(c.blocks * frame.quantisers[c.quantiser])
        # Only the samples that belong to the image take part in smoothing.
        plane = plane[: -(-frame.height * c.down // high), : -(-frame.width * c.across // wide)]
        planes.append(
            _enlarge(plane, wide // c.across, high // c.down)[: frame.height, : frame.width]
        )
    if len(planes) == 1 or frame.plain_rgb:
        return np.stack(planes, -1).astype(np.uint8)
    return _to_rgb(*planes)


def _transform_matrix() -> Array:
    """The inverse cosine transform of 8 numbers, in 13-bit fixed point, as its usual factors give
    it: the products are of rounded constants, and only sums of them are taken."""

    def fixed(x: float) -> int:
        return int(x * 8192 + 0.5)

    c = np.eye(8, dtype=np.int64)
    turn = (c[2] + c[6]) * fixed(0.541196100)
    low, high = turn - c[6] * fixed(1.847759065), turn + c[2] * fixed(0.765366865)
    plus, minus = (c[0] + c[4]) * 8192, (c[0] - c[4]) * 8192
    even = [plus + high, minus + low, minus - low, plus - high]
    shared = (c[7] + c[3] + c[5] + c[1]) * fixed(1.175875602)
    a = shared - (c[7] + c[3]) * fixed(1.961570560)
    b = shared - (c[5] + c[1]) * fixed(0.390180644)
    outer, inner = (c[7] + c[1]) * fixed(0.899976223), (c[5] + c[3]) * fixed(2.562915447)
    odd = [
        c[1] * fixed(1.501321110) - outer + b,
        c[3] * fixed(3.072711026) - inner + a,
        c[5] * fixed(2.053119869) - inner + b,
        c[7] * fixed(0.298631336) - outer + a,
    ]
    rows = [e + o for e, o in zip(even, odd, strict=True)]
    return np.array(rows + [e - o for e, o in zip(even[::-1], odd[::-1], strict=True)])


def _inverse_transform(blocks: Array) -> Array:
    """Blocks [rows, columns, 64] of coefficients as one plane of samples 0..255."""
    order = np.argsort(_ZIGZAG)
    square = blocks[..., order].reshape(*blocks.shape[:2], 8, 8).astype(np.int64)
    matrix = _transform_matrix()
    half = (matrix @ square + (1 << 10)) >> 11
    whole = (half @ matrix.T + (1 << 17)) >> 18
    plane = np.clip(whole + 128, 0, 255).transpose(0, 2, 1, 3)
    return plane.reshape(blocks.shape[0] * 8, blocks.shape[1] * 8)


def _enlarge(plane: Array, across: int, down: int) -> Array:
    """A plane with each sample repeated, or where it doubles across, blended with its neighbour."""
    if across != 2 or down > 2 or plane.shape[1] <= 2:
        return plane.repeat(down, 0).repeat(across, 1)
    edged = np.pad(plane, 1, mode="edge")
    if down == 1:
        rows, rounding, shift = edged[1:-1], (1, 2), 2
    else:
        near = 3 * edged[1:-1]
        rows = np.stack([near + edged[:-2], near + edged[2:]], 1).reshape(-1, edged.shape[1])
        rounding, shift = (8, 7), 4
    near = 3 * rows[:, 1:-1]
    blended = near + rows[:, :-2] + rounding[0], near + rows[:, 2:] + rounding[1]
    return np.stack(blended, -1).reshape(rows.shape[0], -1) >> shift


def _to_rgb(y: Array, blue: Array, red: Array) -> Array:
    """Luma and chroma as colours, in 16-bit fixed point."""
    blue, red = blue - 128, red - 128
    half = 1 << 15
    r = y + ((91881 * red + half) >> 16)
    g = y + ((-22554 * blue - 46802 * red + half) >> 16)
    b = y + ((116130 * blue + half) >> 16)
    return np.clip(np.stack([r, g, b], -1), 0, 255).astype(np.uint8)
