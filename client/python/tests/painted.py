"""Frames that carry their own number as blocks that survive lossy coding: whichever frame comes back says which one it is.

The number's eight bits stand side by side, bright for one and dark for nought, with their complement below them. Behind the
blocks a texture moves, so that motion compensation has work and every plane of every frame differs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import exact
import numpy

# Its encoder of AV1 says much, before libav could be told not to.
os.environ.setdefault("SVT_LOG", "1")

BITS = 8
SIZE = (160, 96)
RATE = 25
SEED = 20240607

# Brightness of a block that says one, and of one that says nought; the texture stays within a fourth of the gap.
BRIGHT, DARK = 180, 76
CONTRAST_MIN = 40


def paint(number: int, size: tuple[int, int] = SIZE, form: str = "yuv420p") -> av.VideoFrame:
    """The frame that says `number`."""
    width, height = size
    depth = exact.depth_of(form)
    rows, columns = exact.BLOCKS[form.removeprefix("yuv").lstrip("aj")[:3]]
    dice = numpy.random.default_rng(SEED + number)
    y, x = numpy.mgrid[:height, :width]
    bits = (number >> (x * BITS // width)) & 1
    blocks = numpy.where(bits ^ (y >= height / 2), BRIGHT, DARK)
    texture = 14 * numpy.sin(0.15 * x + 0.9 * number) * numpy.cos(0.11 * y - 0.4 * number)
    planes = [blocks + texture + dice.uniform(-4, 4, (height, width))]
    small_y, small_x = numpy.mgrid[: -(-height // rows), : -(-width // columns)]
    planes += [128 + 50 * numpy.sin(0.09 * (small_x + turn * small_y) + 0.3 * turn * number) for turn in (1, -1)]
    frame = av.VideoFrame(width, height, form)
    for plane, values in zip(frame.planes, planes, strict=True):
        samples = (values * (1 << (depth - 8))).round().astype(numpy.uint8 if depth == 8 else "<u2")
        lines = numpy.zeros((plane.height, plane.line_size), numpy.uint8)
        data = samples.view(numpy.uint8).reshape(plane.height, -1)
        lines[:, : data.shape[1]] = data
        plane.update(lines)
    return frame


def number_of(pixels: numpy.ndarray, depth: int = 8) -> int | None:
    """The number that a frame says, by its luma `[height, width]` or its RGB `[height, width, 3]`; `None`: it cannot be read."""
    luma = pixels if pixels.ndim == 2 else pixels @ numpy.array([0.299, 0.587, 0.114])
    luma = luma / (1 << (depth - 8))
    height, width = luma.shape
    number = 0
    for bit in range(BITS):
        left, right = (int((bit + share) * width / BITS) for share in (0.25, 0.75))
        above, below = (luma[int(top * height) : int((top + 0.25) * height), left:right].mean() for top in (0.125, 0.625))
        if abs(above - below) < CONTRAST_MIN:
            return None
        number |= int(above > below) << bit
    return number


def number_in(picture: exact.Picture) -> int | None:
    return number_of(picture.planes[0], exact.depth_of(picture.form))


def encode(
    path: Path,
    codec: str,
    numbers: Iterable[int],
    options: dict[str, str] | None = None,
    *,
    size: tuple[int, int] = SIZE,
    form: str = "yuv420p",
    times: Sequence[int] | None = None,
    gop: int = 12,
    bframes: int = 0,
    container: dict[str, str] | None = None,
    bit_rate: int | None = None,
) -> Path:
    """Frames that say `numbers`, shown at `times` (in hundredths of a second; otherwise evenly)."""
    with av.open(str(path), "w", options=container or {}) as out:
        stream = out.add_stream(codec, rate=RATE, options=options or {})
        context = stream.codec_context
        stream.width, stream.height = size
        stream.pix_fmt = form
        context.gop_size, context.max_b_frames, context.thread_count = gop, bframes, 1
        context.time_base = Fraction(1, 100) if times else Fraction(1, RATE)
        if bit_rate:
            context.bit_rate = bit_rate
        for place, number in enumerate(numbers):
            frame = paint(number, size, form)
            frame.pts, frame.time_base = times[place] if times else place, context.time_base
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


@dataclass
class Moved:
    """A packet on its way into another file; times in the source's units."""

    data: bytes
    pts: int | None
    dts: int | None
    key: bool
    duration: int | None


def packets(path: Path) -> list[Moved]:
    """The packets of the first video stream, in decoding order."""
    with av.open(str(path)) as opened:
        return [
            Moved(bytes(packet), packet.pts, packet.dts, packet.is_keyframe, packet.duration)
            for packet in opened.demux(opened.streams.video[0])
            if packet.size
        ]


def remux(
    source: Path,
    path: Path,
    change: Callable[[list[Moved]], Iterable[Moved]] = lambda moved: moved,
    container: dict[str, str] | None = None,
) -> Path:
    """The same coded frames in another file, or with other times."""
    with av.open(str(source)) as opened, av.open(str(path), "w", options=container or {}) as out:
        template = opened.streams.video[0]
        stream = out.add_stream_from_template(template)
        for moved in change(packets(source)):
            packet = av.Packet(moved.data)
            packet.stream, packet.time_base = stream, template.time_base
            packet.pts, packet.dts, packet.is_keyframe = moved.pts, moved.dts, moved.key
            if moved.duration:
                packet.duration = moved.duration
            out.mux(packet)
    return path


def shifted(ticks: int) -> Callable[[list[Moved]], Iterable[Moved]]:
    """Every time moved by `ticks`."""

    def change(moved: list[Moved]) -> Iterable[Moved]:
        for packet in moved:
            packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks
        return moved

    return change
