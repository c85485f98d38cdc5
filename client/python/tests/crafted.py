"""Clips that no encoder at hand writes, made bit by bit: H.264 in field pairs, and MPEG-4 with B-frames packed into others."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import exact
import numpy
from painted import RATE, Moved, encode, packets, paint, remux

START = b"\0\0\0\1"

# A macroblock's side; the field pairs' frames are four of them wide and high, a field half as high.
SIDE = 16
FIELDS_SIZE = (64, 64)

# I_PCM among the macroblock types of an I slice (H.264, table 7-11).
I_PCM = 25


class Bits:
    """A bit string, with the codes of H.264 (section 9.1)."""

    def __init__(self) -> None:
        self.text: list[str] = []

    def u(self, width: int, value: int) -> Bits:
        self.text.append(f"{value:0{width}b}")
        return self

    def ue(self, *values: int) -> Bits:
        for value in values:
            self.u(2 * (value + 1).bit_length() - 1, value + 1)
        return self

    def se(self, *values: int) -> Bits:
        return self.ue(*(2 * value - 1 if value > 0 else -2 * value for value in values))

    def aligned(self) -> Bits:
        joined = "".join(self.text)
        self.text = [joined + "0" * (-len(joined) % 8)]
        return self

    def raw(self, data: bytes) -> Bits:
        self.text.append("".join(f"{byte:08b}" for byte in data))
        return self

    def bytes(self) -> bytes:
        joined = "".join(self.aligned().text)
        return int(joined, 2).to_bytes(len(joined) // 8, "big")


def unit(head: int, bits: Bits) -> bytes:
    """A NAL unit: its payload ends with a one, and a byte keeps it from holding a start code (section 7.4.1)."""
    out, zeros = bytearray(), 0
    for byte in bits.u(1, 1).bytes():
        if zeros >= 2 and byte <= 3:
            out.append(3)
            zeros = 0
        out.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return START + bytes([head]) + bytes(out)


def parameters() -> bytes:
    """Main profile, one reference, pictures of fields; CAVLC."""
    wide, high = FIELDS_SIZE[0] // SIDE, FIELDS_SIZE[1] // SIDE // 2
    sequence = Bits().u(8, 77).u(8, 0).u(8, 30).ue(0, 0, 0, 0, 1).u(1, 0).ue(wide - 1, high - 1)
    sequence.u(1, 0).u(1, 0).u(1, 1).u(1, 0).u(1, 0)
    picture = Bits().ue(0, 0).u(1, 0).u(1, 0).ue(0, 0, 0).u(1, 0).u(2, 0).se(0, 0, 0).u(1, 0).u(1, 0).u(1, 0)
    return unit(0x67, sequence) + unit(0x68, picture)


def field(planes: tuple[numpy.ndarray, ...], frame: int, bottom: int, idr: bool) -> bytes:
    """One field of a frame as an I slice of uncompressed macroblocks."""
    bits = Bits().ue(0, 7, 0).u(4, frame % 16).u(1, 1).u(1, bottom)
    if idr:
        bits.ue(0)
    bits.u(4, (2 * frame + bottom) % 16)
    # Reference marking: nothing but the sliding window.
    bits.u(2, 0) if idr else bits.u(1, 0)
    bits.se(0)
    luma, *chroma = (plane[bottom::2] for plane in planes)
    for y in range(0, luma.shape[0], SIDE):
        for x in range(0, luma.shape[1], SIDE):
            bits.ue(I_PCM).aligned().raw(luma[y : y + SIDE, x : x + SIDE].tobytes())
            for plane in chroma:
                bits.raw(plane[y // 2 : (y + SIDE) // 2, x // 2 : (x + SIDE) // 2].tobytes())
    return unit(0x65 if idr else 0x61, bits)


def fields(path: Path, count: int, gop: int = 8) -> Path:
    """Raw H.264 of `count` frames, each of two access units: its top field, then its bottom field."""
    out = b""
    for number in range(count):
        planes = exact.picture(paint(number, FIELDS_SIZE)).planes
        key = number % gop == 0
        out += START + b"\x09\x10" + (parameters() if key else b"") + field(planes, number % gop, 0, key)
        out += START + b"\x09\x10" + field(planes, number % gop, 1, False)
    path.write_bytes(out)
    return path


def field_packets(source: Path, path: Path) -> Path:
    """The same access units in a container, each with a time of its own: two packets a frame."""
    with av.open(str(source)) as opened, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(opened.streams.video[0])
        for place, moved in enumerate(packets(source)):
            packet = av.Packet(moved.data)
            packet.stream, packet.time_base = stream, Fraction(1, 2 * RATE)
            packet.pts = packet.dts = place
            packet.duration, packet.is_keyframe = 1, moved.key
            out.mux(packet)
    return path


VOP = b"\0\0\1\xb6"
USER_DATA = b"\0\0\1\xb2DivX503b1393p"
# A P-VOP that is not coded, for the packet whose picture stands in the one before it.
NOTHING = VOP + b"\x51\x3f\xff"
I_VOP, P_VOP, B_VOP = range(3)


def kind(data: bytes) -> int:
    return data[data.index(VOP) + 4] >> 6


def packed(path: Path, count: int) -> Path:
    """MPEG-4 in AVI as DivX packed it: a B-VOP stands in the packet of the picture that it refers to, and leaves an empty one."""
    plain = encode(path.with_name("unpacked.avi"), "mpeg4", range(count), gop=16, bframes=1, bit_rate=1_000_000)

    def change(moved: list[Moved]) -> Iterable[Moved]:
        out: list[Moved] = []
        for packet in moved:
            if kind(packet.data) == B_VOP:
                out[-1].data += packet.data
                packet.data = NOTHING
            else:
                at = packet.data.index(VOP)
                packet.data = packet.data[:at] + USER_DATA + packet.data[at:]
            packet.pts = packet.dts = len(out)
            out.append(packet)
        return out

    remux(plain, path, change)
    plain.unlink()
    return path
