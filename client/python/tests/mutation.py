"""Clips damaged by somebody who knows containers: the same seed damages them the same way.

Besides bytes, it is fields that are hit: lengths, counts, times and sizes in the boxes of an MP4, the chunks of an AVI, the
elements of a Matroska file, the packets of a transport stream, the units of a raw stream.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

# What breaks counts, sizes and times: nought, one, the ends of signed and unsigned numbers, 16k, and nearly nothing.
WORDS = [0, 1, 2, 0x4000, 0xFFFF, 0x10000, 0x00FFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]

# Where a part's header begins, where its content does, and where that ends.
Part = tuple[int, int, int]

PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf", b"mvex", b"dinf", b"udta"}
MASTERS = {
    0x1A45DFA3,
    0x18538067,
    0x1549A966,
    0x1654AE6B,
    0xAE,
    0xE0,
    0x1F43B675,
    0xA0,
    0x1C53BB6B,
    0xBB,
    0xB7,
    0x114D9B74,
    0x4DBB,
}


def boxes(data: bytes, start: int = 0, end: int | None = None) -> list[Part]:
    """Of an MP4, parents before what is in them."""
    found, end = [], len(data) if end is None else end
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1 and start + 16 <= end:
            size, head = struct.unpack_from(">Q", data, start + 8)[0], 16
        stop = end if size == 0 else start + size
        if not start + head <= stop <= end:
            break
        found.append((start, start + head, stop))
        if kind in PARENTS:
            found += boxes(data, start + head, stop)
        elif kind == b"stsd":
            found += boxes(data, start + head + 8, stop)
        start = stop
    return found


def chunks(data: bytes, start: int = 0, end: int | None = None) -> list[Part]:
    """Of an AVI."""
    found, end = [], len(data) if end is None else end
    while start + 8 <= end:
        kind, size = struct.unpack_from("<4sI", data, start)
        stop = start + 8 + size
        if stop > end:
            break
        found.append((start, start + 8, stop))
        if kind in (b"RIFF", b"LIST"):
            found += chunks(data, start + 12, stop)
        start = stop + size % 2
    return found


def elements(data: bytes, start: int = 0, end: int | None = None) -> list[Part]:
    """Of a Matroska file."""
    found, end = [], len(data) if end is None else end
    while start + 2 <= end and data[start]:
        name_bytes = 9 - data[start].bit_length()
        at = start + name_bytes
        if at >= end or not data[at]:
            break
        size_bytes = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + size_bytes], "big") & ~(1 << 7 * size_bytes)
        content = at + size_bytes
        stop = end if size == (1 << 7 * size_bytes) - 1 else content + size
        if not content <= stop <= end:
            break
        found.append((start, content, stop))
        if int.from_bytes(data[start:at], "big") in MASTERS:
            found += elements(data, content, stop)
        start = stop
    return found


def packets(data: bytes) -> list[Part]:
    """Of a transport stream."""
    return [(at, at + 4, at + 188) for at in range(0, len(data) - 187, 188)]


def units(data: bytes) -> list[Part]:
    """Of a stream with start codes; of any other file, some parts of it."""
    found, at = [], data.find(b"\0\0\1")
    while at >= 0:
        after = data.find(b"\0\0\1", at + 3)
        found.append((at, at + 3, after if after > 0 else len(data)))
        at = after
    return found if len(found) > 2 else [(at, at + 4, min(at + 512, len(data))) for at in range(0, len(data), 512)]


def parts(data: bytes) -> list[Part]:
    """What the file is made of, by its kind."""
    by: Callable[[bytes], list[Part]] = units
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"free"):
        by = boxes
    elif data[:4] == b"RIFF":
        by = chunks
    elif data[:4] == b"\x1a\x45\xdf\xa3":
        by = elements
    elif data[:1] == b"\x47" and data[188:189] == b"\x47":
        by = packets
    return by(data) or units(data)


def mutant(data: bytes, seed: int) -> bytes:
    """One to four things wrong with it."""
    dice, out = random.Random(seed), bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 4])):
        dice.choice(WAYS)(out, parts(bytes(out)), dice)
        if len(out) < 16:
            break
    return bytes(out)


def bits(out: bytearray, _: list[Part], dice: random.Random) -> None:
    """Some bits anywhere."""
    for _ in range(dice.choice([1, 3, 20])):
        out[dice.randrange(len(out))] ^= 1 << dice.randrange(8)


def front(out: bytearray, _: list[Part], dice: random.Random) -> None:
    """Some bytes of the first kibibyte."""
    for _ in range(dice.choice([1, 3, 8])):
        out[dice.randrange(min(1024, len(out)))] = dice.choice([0, 0xFF, 0x80, dice.randrange(256)])


def cut(out: bytearray, _: list[Part], dice: random.Random) -> None:
    """The end is missing."""
    del out[dice.randrange(len(out)) :]


def field(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """A word in a small part, or the first ones of a large one, says something else: counts, times, sizes."""
    for _ in range(dice.choice([1, 1, 3])):
        _, content, end = dice.choice([part for part in found if part[2] - part[1] >= 4] or [(0, 0, len(out))])
        words = min((end - content) // 4, 32)
        at = content + 4 * dice.randrange(max(words, 1)) + dice.choice([0, 0, 0, 1, 2])
        width = dice.choice([4, 4, 4, 2, 1])
        value = dice.choice([*WORDS, dice.getrandbits(32)]) & (1 << 8 * width) - 1
        if at + width <= len(out):
            out[at : at + width] = value.to_bytes(width, dice.choice(["big", "little"]))


def length(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """A part's header, where its length stands, lies."""
    start, content, _ = dice.choice(found)
    at = dice.randrange(start, max(content, start + 1))
    out[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])


def swap(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """Two parts change places."""
    (a, _, b), (c, _, d) = sorted([dice.choice(found), dice.choice(found)])
    if b <= c:
        out[a:d] = out[c:d] + out[b:c] + out[a:b]


def double(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """A part comes twice, or many times."""
    start, _, end = dice.choice(found)
    if end - start < 1 << 20:
        out[end:end] = out[start:end] * dice.choice([1, 1, 2, 30])


def drop(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """A part is missing."""
    start, _, end = dice.choice(found)
    if end - start < len(out) - 16:
        del out[start:end]


def blank(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """A part's content is one byte, over and over."""
    _, content, end = dice.choice(found)
    out[content:end] = bytes([dice.choice([0, 0xFF, 0x47])]) * (end - content)


def times(out: bytearray, found: list[Part], dice: random.Random) -> None:
    """A table of an MP4 is all one number: each frame at one time, or none of a time at all; of other files, as `field`."""
    tables = [
        part for part in found if bytes(out[part[0] + 4 : part[0] + 8]) in (b"stts", b"ctts", b"stsz", b"stsc", b"stss", b"trun")
    ]
    if not tables:
        return field(out, found, dice)
    _, content, end = dice.choice(tables)
    at = content + dice.choice([4, 8])
    count = (end - at) // 4
    out[at : at + 4 * count] = struct.pack(">I", dice.choice(WORDS)) * count
    return None


WAYS = [bits, front, cut, field, field, field, field, length, length, swap, double, drop, blank, times, times]
