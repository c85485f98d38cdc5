"""Which pixels of a video are right: the exact rule in NumPy, packed planes, and PyAV decoding from first to last beside it.

Profile `exact` turns decoded planes into RGB by exact fractions, so that every machine gives the same bytes:

- Matrix and range are the stream's: BT.709 and BT.2020 where it says so, otherwise BT.601, also for HD; full range where it says
  so or for `yuvj…`, otherwise limited.
- Each luma sample takes the chroma sample of its block. Nothing is interpolated, chroma location is ignored.
- The value is rounded half up and clipped to a byte; more than 8 bits are rounded once, from full depth.
- Gray is replicated, alpha dropped; what is RGB already is copied.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy

av.logging.set_level(av.logging.PANIC)

# FFmpeg's AVColorSpace -> (Kr, Kb) in ten-thousandths.
MATRICES = {1: (2126, 722), 9: (2627, 593), 10: (2627, 593)}
BT601 = (2990, 1140)
ONE = 10_000

# Rows and columns that share a chroma sample.
BLOCKS = {"444": (1, 1), "422": (1, 2), "420": (2, 2), "440": (2, 1), "411": (1, 4), "410": (4, 4)}

FULL_RANGE = 2
FILES_MIN = 64


def corpus() -> list[dict] | None:
    """The manifest's rows, each with its `path`; `None` if no corpus was named. One that was named has to be there."""
    named = os.environ.get("FRAMECACHE_CORPUS")
    if not named:
        return None
    manifest = Path(named) / "video/manifest.jsonl"
    assert manifest.exists(), f"FRAMECACHE_CORPUS is {named}, but {manifest} is absent"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    rows = [{**row, "path": manifest.parent / row["file"]} for row in rows]
    print(f"corpus: {len(rows)} files from {named} ({sum(row['expect']['ok'] for row in rows)} that decode)")
    assert len(rows) >= FILES_MIN
    return rows


@dataclass(frozen=True)
class Picture:
    """One decoded frame: planes cut to the picture, without padding; samples of more than 8 bits are little-endian 16-bit."""

    form: str
    width: int
    height: int
    planes: tuple[numpy.ndarray, ...]
    full: bool = False
    matrix: int = 2
    pts: int | None = None
    # `pts` in time base units of the stream, as seconds.
    pts_seconds: float | None = None
    key: bool = False
    corrupt: bool = False
    # swscale's RGB, only where the planes are RGB or a palette already.
    copied: numpy.ndarray | None = None

    def packed(self) -> bytes:
        """All planes, one behind the other: what FFmpeg's `rawvideo` writes."""
        return b"".join(plane.tobytes() for plane in self.planes)

    def sha256(self) -> str:
        return hashlib.sha256(self.packed()).hexdigest()

    def rgb(self) -> numpy.ndarray:
        """uint8 `[height, width, 3]` by the exact rule."""
        if self.copied is not None:
            return self.copied
        return rgb(self.form, self.planes, full=self.full, matrix=self.matrix)

    def rgb16(self) -> numpy.ndarray:
        """uint16 `[height, width, 3]` by the same rule, with the largest sample for white: 0 to `2 ** depth - 1`."""
        if self.copied is not None:
            assert self.form.startswith("gbr"), self.form
            green, blue, red = self.planes[:3]
            return numpy.stack([red, green, blue], -1).astype(numpy.uint16)
        white = (1 << depth_of(self.form)) - 1
        return rgb(self.form, self.planes, full=self.full, matrix=self.matrix, white=white)


def depth_of(form: str) -> int:
    return next((bits for bits in (9, 10, 12, 14, 16) if f"p{bits}" in form or f"gray{bits}" in form), 8)


def rgb(form: str, planes: tuple[numpy.ndarray, ...], *, full: bool, matrix: int, white: int = 255) -> numpy.ndarray:
    """The exact rule. Each channel is `(ay Y + au U + av V) / d` in whole numbers, a common divisor taken out.

    A byte where `white` is one, else 16 bits.
    """
    depth = depth_of(form)
    step = 1 << (depth - 8)
    height, width = planes[0].shape
    luma = planes[0].astype(numpy.int64) - (0 if full else 16 * step)
    luma_range = (1 << depth) - 1 if full else 219 * step
    if form.startswith("gray"):
        return numpy.repeat(rounded([(luma, white)], luma_range, white)[..., None], 3, 2)
    rows, columns = BLOCKS[form.removeprefix("yuv").lstrip("aj")[:3]]
    chroma_range = (1 << depth) - 1 if full else 224 * step
    kr, kb = MATRICES.get(matrix, BT601)
    kg = ONE - kr - kb

    def spread(term: numpy.ndarray) -> numpy.ndarray:
        return term.repeat(rows, 0).repeat(columns, 1)[:height, :width]

    u, v = (plane.astype(numpy.int64) - 128 * step for plane in planes[1:3])
    of_luma = white * chroma_range * ONE
    red = [(luma, of_luma), (v, white * 2 * (ONE - kr) * luma_range)]
    green = [
        (luma, of_luma * kg),
        (v, -white * 2 * kr * (ONE - kr) * luma_range),
        (u, -white * 2 * kb * (ONE - kb) * luma_range),
    ]
    blue = [(luma, of_luma), (u, white * 2 * (ONE - kb) * luma_range)]
    whole = luma_range * chroma_range * ONE
    out = numpy.empty((height, width, 3), number_of(white))
    for channel, terms, divisor in ((0, red, whole), (1, green, whole * kg), (2, blue, whole)):
        out[..., channel] = rounded(terms, divisor, white, spread)
    return out


def number_of(white: int) -> type:
    return numpy.uint8 if white == 255 else numpy.uint16


def rounded(terms, divisor: int, white: int, spread=None) -> numpy.ndarray:
    """`floor(sum / divisor + 1/2)` from 0 to `white`. The first term has the picture's size, the others are spread to it."""
    common = math.gcd(divisor, *(factor for _, factor in terms))
    divisor //= common
    (luma, factor), *others = terms
    total = luma * (2 * factor // common)
    total += divisor
    if others:
        total += spread(sum(samples * (2 * weight // common) for samples, weight in others))
    total //= 2 * divisor
    return total.clip(0, white, out=total).astype(number_of(white))


def defined(y: int, u: int, v: int, *, depth: int, full: bool, matrix: int, white: int = 255) -> tuple[int, int, int]:
    """The same rule for one pixel, as it is written down: fractions, and no trick."""
    step = 1 << (depth - 8)
    whole = (1 << depth) - 1
    luma = Fraction(y, whole) if full else Fraction(y - 16 * step, 219 * step)
    pb, pr = (Fraction(sample - 128 * step, whole if full else 224 * step) for sample in (u, v))
    kr, kb = (Fraction(part, ONE) for part in MATRICES.get(matrix, BT601))
    red, blue = luma + 2 * (1 - kr) * pr, luma + 2 * (1 - kb) * pb
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return tuple(min(white, max(0, math.floor(white * value + Fraction(1, 2)))) for value in (red, green, blue))


def picture(frame: av.VideoFrame, time_base: Fraction | None = None) -> Picture:
    """A frame of PyAV. `time_base` is the stream's, for a frame that names none."""
    form = frame.format.name
    depth = depth_of(form)
    base = frame.time_base or time_base
    copied = None
    if form.startswith(("yuv", "gray")) and not form.startswith("yuyv"):
        kind = numpy.dtype(numpy.uint8) if depth == 8 else numpy.dtype("<u2")
    else:
        kind, copied = numpy.dtype(numpy.uint8), numpy.ascontiguousarray(frame.to_ndarray(format="rgb24"))
    planes = []
    for number, plane in enumerate(frame.planes):
        width = sum((part.bits + 7) // 8 for part in frame.format.components if part.plane == number) * plane.width
        lines = numpy.frombuffer(plane, numpy.uint8)
        # The buffer may end with the last line, before its padding.
        padded = numpy.zeros(plane.line_size * plane.height, numpy.uint8)
        padded[: min(len(lines), len(padded))] = lines[: len(padded)]
        cut = numpy.ascontiguousarray(padded.reshape(plane.height, plane.line_size)[:, :width])
        planes.append(cut.view(kind))
    return Picture(
        form,
        frame.width,
        frame.height,
        tuple(planes),
        full=int(frame.color_range) == FULL_RANGE or form.startswith("yuvj"),
        matrix=int(frame.colorspace),
        pts=frame.pts,
        pts_seconds=None if frame.pts is None or base is None else float(frame.pts * base),
        key=bool(frame.key_frame),
        corrupt=bool(frame.is_corrupt),
        copied=copied,
    )


def walk(path: Path, *, stream: int | None = None, tolerant: bool = False) -> Iterator[Picture]:
    """Every frame from the first to the last, by one thread: what each frame is, whatever the way to it.

    `stream` is FFmpeg's best one where none is named. `tolerant` goes on behind packets that cannot be decoded.
    """
    for frame, time_base in frames(path, stream=stream, tolerant=tolerant):
        yield picture(frame, time_base)


def frames(path: Path, *, stream: int | None = None, tolerant: bool = False) -> Iterator[tuple[av.VideoFrame, Fraction | None]]:
    """PyAV's own frames, one after another."""
    with av.open(str(path)) as opened:
        found = opened.streams.best("video") if stream is None else opened.streams[stream]
        assert found is not None, f"{path.name} has no video stream"
        found.codec_context.thread_count = 1
        for packet in opened.demux(found):
            try:
                decoded = packet.decode()
            except av.FFmpegError:
                if not tolerant:
                    raise
                continue
            for frame in decoded:
                yield frame, found.time_base
