"""Clips that are meant to harm: each is named for what it tries."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy
import painted
from clips import X264, box
from crafted import Bits, unit

HUGE = 16_384


def boxed(kind: bytes, *content: bytes) -> bytes:
    """An MP4 box."""
    data = b"".join(content)
    return struct.pack(">I", 8 + len(data)) + kind + data


def table(data: bytes, kind: str) -> tuple[int, int]:
    """Where a table of the first track lies."""
    return box(data, "moov", "trak", "mdia", "minf", "stbl", kind)


def with_words(data: bytes, kind: str, words: dict[int, int]) -> bytes:
    """Words of a table of the first track say something else; by their place in it."""
    out, (start, _) = bytearray(data), table(data, kind)
    for place, value in words.items():
        struct.pack_into(">I", out, start + 4 * place, value)
    return bytes(out)


def grown(data: bytes, path: list[str], kind: str, content: bytes) -> bytes:
    """The box at the end of `path` has other content; the boxes around it grow with it. The header comes last in the file."""
    out, (start, end) = bytearray(data), box(data, *path, kind)
    more = len(content) - (end - start)
    out[start:end] = content
    for depth in range(1, len(path) + 2):
        place = box(data, *[*path, kind][:depth])[0] - 8
        struct.pack_into(">I", out, place, struct.unpack_from(">I", out, place)[0] + more)
    return bytes(out)


STBL = ["moov", "trak", "mdia", "minf", "stbl"]


def lying(plain: bytes) -> Iterable[tuple[str, bytes]]:
    """MP4s whose header says what is not so. `plain` has its header at the end."""
    frames = struct.unpack_from(">I", plain, table(plain, "stsz")[0] + 8)[0]
    end = 1 << 31
    yield "samples-of-one-size", grown(plain, STBL, "stsz", struct.pack(">3I", 0, 1, end))
    yield "samples-of-no-size", grown(plain, STBL, "stsz", struct.pack(">3I", 0, 0, end))
    yield "samples-in-time", with_words(plain, "stts", {2: end})
    yield "samples-in-all", with_words(grown(plain, STBL, "stsz", struct.pack(">3I", 0, 1, end)), "stts", {1: 1, 2: end, 3: 1})
    yield "one-chunk", with_words(grown(plain, STBL, "stsz", struct.pack(">3I", 0, 1, end)), "stsc", {1: 1, 2: 1, 3: end, 4: 1})
    yield "more-samples", with_words(plain, "stsz", {2: frames + 1000})
    yield "entries", with_words(plain, "stts", {1: 0xFFFFFFFF})
    yield "chunks", with_words(plain, "stco", {1: 0x10000000})
    yield "far-chunks", with_words(plain, "stco", {2: 0xFFFFFF00})
    yield "overlapping", with_words(plain, "stsz", {3 + place: 1 << 30 for place in range(frames)})
    yield "one-time", with_words(plain, "stts", {1: 1, 2: frames, 3: 0})
    yield "back-in-time", with_words(plain, "stts", {1: 1, 2: frames, 3: 0xFFFFFF00})
    start, _ = box(plain, "moov", "trak", "mdia", "mdhd")
    yield "no-timescale", plain[: start + 12] + bytes(4) + plain[start + 16 :]
    yield "all-timescale", plain[: start + 12] + b"\xff" * 4 + plain[start + 16 :]
    start, _ = box(plain, "moov", "mvhd")
    yield "no-movie-timescale", plain[: start + 12] + bytes(4) + plain[start + 16 :]
    start, _ = table(plain, "stsd")
    yield "huge-entry", plain[: start + 40] + struct.pack(">2H", HUGE, HUGE) + plain[start + 44 :]
    header = plain.index(b"moov") - 4
    yield "long-box", plain[:header] + struct.pack(">I4sQ", 1, b"moov", (1 << 63) - 1) + plain[header + 8 :]
    deep = b""
    for _ in range(2_000):
        deep = boxed(b"udta", deep)
    yield "deep", plain[:header] + boxed(b"moov", deep) + plain[header:]
    media = plain.index(b"mdat") - 4
    yield "endless", plain[:media] + bytes(4) + plain[media + 4 :]
    yield "nested", plain[:media] + boxed(b"moov", b"\0\0\0\x08trak" * 20_000) + plain[media:]
    yield "boxes", plain[:media] + b"\0\0\0\x08free" * 200_000 + plain[media:]


def references(plain: bytes, other: str) -> Iterable[tuple[str, bytes]]:
    """What would have the node open another file, or an address."""
    for name, place in {"url": other, "file": "file:///etc/hostname"}.items():
        located = boxed(b"url ", bytes(4), place.encode() + b"\0")
        yield (
            f"dref-{name}",
            grown(plain, ["moov", "trak", "mdia", "minf"], "dinf", boxed(b"dref", struct.pack(">2I", 0, 1), located)),
        )
        alias = boxed(b"alis", bytes(4), bytes(150) + place.encode())
        yield (
            f"alias-{name}",
            grown(plain, ["moov", "trak", "mdia", "minf"], "dinf", boxed(b"dref", struct.pack(">2I", 0, 1), alias)),
        )
        movie = boxed(b"rdrf", bytes(4), b"url ", struct.pack(">I", len(place) + 1), place.encode() + b"\0")
        yield f"movie-{name}", boxed(b"ftyp", b"qt  ", bytes(4), b"qt  ") + boxed(b"moov", boxed(b"rmra", boxed(b"rmda", movie)))
        text = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{place}\n#EXT-X-ENDLIST\n".encode()
        yield f"list-{name}", boxed(b"free", text) + text
        yield f"bare-list-{name}", text
        yield f"concat-{name}", f"ffconcat version 1.0\nfile {place}\n".encode()
        yield f"dash-{name}", f'<?xml version="1.0"?><MPD><Period><BaseURL>{place}</BaseURL></Period></MPD>'.encode()


def sized(width: int, height: int) -> bytes:
    """Raw H.264 whose parameters say so much, and of whose pictures there is next to nothing."""
    wide, high = width // 16, height // 16
    sequence = Bits().u(8, 66).u(8, 0).u(8, 62).ue(0, 0, 2, 1).u(1, 0).ue(wide - 1, high - 1).u(1, 1).u(1, 1).u(1, 0).u(1, 0)
    picture = Bits().ue(0, 0).u(1, 0).u(1, 0).ue(0, 0, 0).u(1, 0).u(2, 0).se(0, 0, 0).u(1, 0).u(1, 0).u(1, 0)
    out = b""
    for number in range(20):
        piece = Bits().ue(0, 7, 0).u(4, 0).ue(number % 2).u(2, 0).se(0).ue(3).ue(0).se(0)
        out += unit(0x67, sequence) + unit(0x68, picture) + unit(0x65, piece)
    return out


def one(codec: str, size: tuple[int, int], form: str = "yuv420p", options: dict[str, str] | None = None) -> tuple[bytes, bytes]:
    """One gray picture, coded: its packet and what a container says of its codec."""
    context = av.CodecContext.create(codec, "w")
    context.width, context.height = size
    context.pix_fmt, context.time_base, context.options, context.thread_count = form, Fraction(1, 25), options or {}, 1
    frame = av.VideoFrame(*size, form)
    for plane in frame.planes:
        plane.update(numpy.full((plane.height, plane.line_size), 128, numpy.uint8))
    frame.pts = 0
    packets = [*context.encode(frame), *context.encode(None)]
    return bytes(packets[0]), context.extradata or b""


def repeated(path: Path, data: bytes, codec: str, size: tuple[int, int], count: int, container: str | None = None) -> Path:
    """One packet, over and over: each a unit of its own."""
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(count):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, True
            out.mux(packet)
    return path


def endless(path: Path, count: int) -> Path:
    """One unit of `count` frames: only the first can be begun at."""
    numbers = (number % 256 for number in range(count))
    params = f"keyint=infinite:min-keyint={count}:scenecut=0:bframes=0:ref=1"
    pictures = [painted.paint(number, (64, 48)) for number in range(256)]
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=painted.RATE, options={"preset": "ultrafast", "crf": "30", "x264-params": params})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.thread_count = 1
        for place, number in enumerate(numbers):
            frame = pictures[number]
            frame.pts, frame.time_base = place, Fraction(1, painted.RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def changing(folder: Path) -> Path:
    """H.264 that changes its size, and its sample format, from one group of pictures to the next."""
    parts = []
    for number, (size, form) in enumerate(
        [((160, 96), "yuv420p"), ((96, 64), "yuv420p"), ((160, 96), "yuv444p"), ((320, 192), "yuv420p")]
    ):
        part = painted.encode(folder / f"part{number}.h264", "libx264", range(10), X264, size=size, form=form, gop=10)
        parts.append(part.read_bytes())
        part.unlink()
    path = folder / "changing.h264"
    path.write_bytes(b"".join(parts))
    return path


def scattered(path: Path, count: int = 4_000, places: int = 20, apart: int = 128 << 10) -> Path:
    """An MP4 that has to be read through, and whose frames lie in no order, far apart."""
    data, _ = one("mpeg2video", (64, 48))
    plain = repeated(path, data, "mpeg2video", (64, 48), count).read_bytes()
    chunks = [8 + (number * 7919) % places * apart for number in range(count)]
    header = plain[plain.index(b"moov") - 4 :]
    header = grown(header, STBL, "stsc", struct.pack(">5I", 0, 1, 1, 1, 1))
    header = grown(header, STBL, "stco", struct.pack(f">{count + 2}I", 0, count, *chunks))
    path.write_bytes(boxed(b"mdat", data.ljust(apart, b"\0") * places) + header)
    return path
