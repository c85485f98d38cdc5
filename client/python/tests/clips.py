"""Clips of every kind, small, whose frames carry their own number (`painted`): made on the spot by PyAV, and by bytes.

usage: clips.py FOLDER        makes every clip there, reads each with PyAV, and prints what it found
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import crafted
import exact
import numpy
from painted import RATE, SEED, SIZE, Moved, encode, number_in, packets, paint, remux, shifted

X264 = {"preset": "veryfast", "crf": "26"}


@dataclass(frozen=True)
class Clip:
    """One file, and what is true of it by construction."""

    name: str
    kind: str
    # Each frame's number, in presentation order.
    numbers: tuple[int, ...] = ()
    # Each frame's time, where it is known beforehand.
    seconds: tuple[float, ...] | None = None
    # The file stores a time for each frame, and another for each.
    timed: bool = True
    # Some frames cannot be decoded, or only by concealing what is lost.
    damaged: bool = False
    # No video comes of it at all.
    refused: bool = False
    # The frames have more than one size.
    sizes: int = 1
    # Counter-clockwise, by the display matrix.
    rotation: int = 0
    # What the header says, where that is not the number of frames.
    header: int | None = None


# --- files by bytes -----------------------------------------------------------------------------------------------------------


def box(data: bytes, *names: str) -> tuple[int, int]:
    """Where the content of an MP4 box lies, named by its parents and itself: the first such box."""
    start, end = 0, len(data)
    for name in names:
        while True:
            assert start + 8 <= end, f"no box {name}"
            size, kind = struct.unpack_from(">I4s", data, start)
            if kind == name.encode():
                start, end = start + 8, start + size
                break
            start += size
    return start, end


def rotated(data: bytes) -> bytes:
    """The display matrix of the first track turns by a quarter, clockwise."""
    start, _ = box(data, "moov", "trak", "tkhd")
    assert data[start] == 0, "a version 0 header was expected"
    matrix = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    return data[: start + 40] + matrix + data[start + 76 :]


def early(data: bytes, ticks: int) -> bytes:
    """An MP4 without its edit list, every frame shown `ticks` earlier: composition offsets may be negative."""
    out = bytearray(data)
    edits, _ = box(data, "moov", "trak", "edts")
    out[edits - 4 : edits] = b"free"
    start, _ = box(data, "moov", "trak", "mdia", "minf", "stbl", "ctts")
    out[start] = 1
    for place in range(struct.unpack_from(">I", data, start + 4)[0]):
        at = start + 12 + 8 * place
        struct.pack_into(">i", out, at, struct.unpack_from(">i", data, at)[0] - ticks)
    return bytes(out)


def flipped(data: bytes, start: int, end: int, flips: int) -> bytes:
    """Some bits between two places are the other way round."""
    dice, broken = random.Random(SEED), bytearray(data)
    for _ in range(flips):
        broken[dice.randrange(start, end)] ^= 1 << dice.randrange(8)
    return bytes(broken)


def payloads(path: Path) -> list[tuple[int, int]]:
    """Where the packets of the first video stream lie in the file, in decoding order."""
    with av.open(str(path)) as opened:
        return [(packet.pos, packet.pos + packet.size) for packet in opened.demux(opened.streams.video[0]) if packet.size]


def disposable(path: Path) -> list[tuple[int, int]]:
    """Of an MP4's H.264 packets those that no other picture is predicted from (7.4.1: `nal_ref_idc` is 0): place and frame."""
    moved = packets(path)
    shown = sorted(packet.pts for packet in moved)

    def kinds(data: bytes) -> Iterable[int]:
        at = 0
        while at < len(data):
            yield data[at + 4]
            at += 4 + int.from_bytes(data[at : at + 4], "big")

    needless = [all(kind in (1, 6, 9) for kind in kinds(packet.data)) for packet in moved]
    return [(place, shown.index(moved[place].pts)) for place, is_so in enumerate(needless) if is_so]


def lying(data: bytes, frames: int) -> bytes:
    """An AVI whose header counts `frames`."""
    main, stream = data.index(b"avih") + 8, data.index(b"strh") + 8
    out = bytearray(data)
    struct.pack_into("<I", out, main + 16, frames)
    struct.pack_into("<I", out, stream + 32, frames)
    return bytes(out)


# --- the kinds ----------------------------------------------------------------------------------------------------------------


def even(count: int, start: float = 0.0) -> tuple[float, ...]:
    return tuple(start + place / RATE for place in range(count))


def h264(folder: Path) -> Iterable[Clip]:
    """H.264 in every container, and with every kind of time."""
    sixty = range(60)
    closed = encode(folder / "bframes.mp4", "libx264", sixty, X264 | {"x264-params": "scenecut=0:bframes=3"}, gop=15, bframes=3)
    yield Clip("bframes.mp4", "B-frames, header at the end", tuple(sixty), even(60))
    remux(closed, folder / "faststart.mp4", container={"movflags": "faststart"})
    yield Clip("faststart.mp4", "header at the start", tuple(sixty), even(60))
    pyramid = "open-gop=1:bframes=8:b-adapt=0:b-pyramid=normal:keyint=24:min-keyint=24:scenecut=0"
    opened = encode(folder / "opengop.mp4", "libx264", sixty, X264 | {"x264-params": pyramid}, gop=24, bframes=8)
    yield Clip("opengop.mp4", "open GOP", tuple(sixty), even(60))
    for name in ("opengop.mkv", "opengop.ts"):
        remux(opened, folder / name)
        yield Clip(name, f"open GOP in {name[-3:].strip('.')}", tuple(sixty), even(60) if name.endswith("mkv") else None)
    remux(opened, folder / "nopts.h264")
    yield Clip("nopts.h264", "raw H.264, no times", tuple(sixty), timed=False)
    flags = "frag_keyframe+empty_moov+default_base_moof"
    remux(opened, folder / "fragmented.mp4", container={"movflags": flags})
    yield Clip("fragmented.mp4", "fragmented", tuple(sixty), even(60, 2 / RATE))
    encode(folder / "h264.avi", "libx264", sixty, X264 | {"x264-params": "bframes=3:scenecut=0"}, gop=15, bframes=3)
    yield Clip("h264.avi", "H.264 with B-frames in AVI", tuple(sixty), timed=False)
    encode(folder / "refresh.mp4", "libx264", sixty, X264 | {"x264-params": "intra-refresh=1:bframes=2"}, gop=20, bframes=2)
    yield Clip("refresh.mp4", "intra refresh", tuple(sixty), even(60))

    dice, times = random.Random(SEED), [0]
    while len(times) < 50:
        times.append(times[-1] + dice.choice([1, 2, 4, 4, 4, 9, 50]))
    params = {"x264-params": "bframes=3:scenecut=0"}
    encode(folder / "vfr.mp4", "libx264", range(50), X264 | params, times=times, gop=10, bframes=3)
    yield Clip("vfr.mp4", "variable frame rate", tuple(range(50)), tuple(time / 100 for time in times))
    gap = [4 * place + (300 if place >= 25 else 0) for place in range(50)]
    encode(folder / "gap.mkv", "libx264", range(50), X264 | params, times=gap, gop=10, bframes=3)
    yield Clip("gap.mkv", "a gap of three seconds", tuple(range(50)), tuple(time / 100 for time in gap))

    ticks = packets(opened)[0].duration
    cut = remux(
        opened,
        folder / "editlist.mp4",
        shifted(-7 * ticks - packets(opened)[0].pts),
        {"avoid_negative_ts": "disabled", "use_editlist": "1"},
    )
    yield Clip(cut.name, "edit list that hides the first frames", tuple(range(7, 60)), even(53))
    late = remux(opened, folder / "late.mp4", shifted(30 * ticks), {"avoid_negative_ts": "disabled", "use_editlist": "1"})
    yield Clip(late.name, "edit list that starts late", tuple(sixty), even(60, 30 / RATE))


def sampled(folder: Path) -> Iterable[Clip]:
    """H.264 of other sample formats and sizes."""
    for form in ("yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le"):
        encode(folder / f"h264-{form}.mp4", "libx264", range(30), X264, form=form, gop=10, bframes=2)
        yield Clip(f"h264-{form}.mp4", f"H.264 {form}", tuple(range(30)), even(30))
    encode(folder / "odd.mp4", "libx264", range(30), X264, form="yuv444p", size=(161, 97), gop=10, bframes=2)
    yield Clip("odd.mp4", "odd size", tuple(range(30)), even(30))


def hevc(folder: Path) -> Iterable[Clip]:
    quiet = "pools=none:frame-threads=1:log-level=none:scenecut=0"
    preset = {"preset": "ultrafast", "crf": "28"}
    closed = preset | {"x265-params": f"{quiet}:open-gop=0:bframes=3:keyint=15:min-keyint=15"}
    encode(folder / "hevc.mp4", "libx265", range(45), closed, gop=15, bframes=3)
    yield Clip("hevc.mp4", "HEVC", tuple(range(45)), even(45))
    opened = preset | {"x265-params": f"{quiet}:open-gop=1:bframes=4:b-pyramid=1:keyint=18:min-keyint=18"}
    cra = encode(folder / "hevc-opengop.mkv", "libx265", range(64), opened, gop=18, bframes=4)
    yield Clip("hevc-opengop.mkv", "HEVC open GOP", tuple(range(64)), even(64))
    encode(folder / "nopts.hevc", "libx265", range(64), opened, gop=18, bframes=4)
    yield Clip("nopts.hevc", "raw HEVC, no times", tuple(range(64)), timed=False)
    remux(cra, folder / "hevc-cut.mkv", from_second_key)
    yield Clip("hevc-cut.mkv", "HEVC that starts at an open GOP", tuple(range(18, 64)))
    ten = preset | {"x265-params": f"{quiet}:bframes=3:keyint=15"}
    encode(folder / "hevc-10.mp4", "libx265", range(30), ten, form="yuv420p10le", gop=15, bframes=3)
    yield Clip("hevc-10.mp4", "HEVC yuv420p10le", tuple(range(30)), even(30))


def from_second_key(moved: list[Moved]) -> list[Moved]:
    keys = [place for place, packet in enumerate(moved) if packet.key]
    return moved[keys[1] :]


def others(folder: Path) -> Iterable[Clip]:
    """VP8, VP9, AV1, MPEG-2, MPEG-4 and Motion JPEG."""
    quick = {"deadline": "good", "cpu-used": "5"}
    vp8 = encode(folder / "vp8.webm", "libvpx", range(60), quick, gop=30, bit_rate=400_000)
    yield Clip("vp8.webm", "VP8", tuple(range(60)), even(60))
    remux(vp8, folder / "vp8-hidden.webm", unshown)
    shown = [number for number in range(60) if number not in HIDDEN]
    yield Clip("vp8-hidden.webm", "VP8 with hidden frames", tuple(shown), tuple(number / RATE for number in shown))
    vp9 = encode(folder / "vp9.webm", "libvpx-vp9", range(60), quick, gop=30, bit_rate=400_000)
    yield Clip("vp9.webm", "VP9", tuple(range(60)), even(60))
    remux(vp9, folder / "vp9.mp4")
    yield Clip("vp9.mp4", "VP9 in MP4", tuple(range(60)), even(60))
    for name, kind in {"av1.mkv": "AV1 with hidden frames", "av1.mp4": "AV1 in MP4"}.items():
        settings = {"preset": "10", "svtav1-params": "lp=1"}
        encode(folder / name, "libsvtav1", range(60), settings, gop=30, size=(192, 128))
        yield Clip(name, kind, tuple(range(60)), even(60))
    encode(folder / "mpeg2.ts", "mpeg2video", range(60), {"q:v": "4"}, gop=15, bframes=2, bit_rate=2_000_000)
    yield Clip("mpeg2.ts", "MPEG-2 in TS", tuple(range(60)))
    encode(folder / "mpeg4.avi", "mpeg4", range(60), gop=15, bframes=2, bit_rate=1_000_000)
    yield Clip("mpeg4.avi", "MPEG-4 with B-frames in AVI", tuple(range(60)), timed=False)
    encode(folder / "mpeg4.mp4", "mpeg4", range(60), gop=15, bframes=2, bit_rate=1_000_000)
    yield Clip("mpeg4.mp4", "MPEG-4 with B-frames in MP4", tuple(range(60)), even(60))
    encode(folder / "mjpeg.avi", "mjpeg", range(20), form="yuvj422p", bit_rate=4_000_000)
    yield Clip("mjpeg.avi", "Motion JPEG", tuple(range(20)), even(20))


# Places of frames that later ones refer to, and nobody is shown.
HIDDEN = (7, 20, 43)


def unshown(moved: list[Moved]) -> Iterable[Moved]:
    """The bit of VP8's frame tag that shows a frame is clear in `HIDDEN` (RFC 6386, section 9.1)."""
    for place in HIDDEN:
        data = moved[place].data
        moved[place].data = bytes([data[0] & ~0x10]) + data[1:]
    return moved


def odd(folder: Path) -> Iterable[Clip]:
    """Times, headers and streams that mislead."""
    plain = encode(folder / "plain.mp4", "libx264", range(48), X264 | {"x264-params": "bframes=0:scenecut=0"}, gop=12)
    yield Clip("plain.mp4", "no B-frames", tuple(range(48)), even(48))

    def thirds(moved: list[Moved]) -> Iterable[Moved]:
        for place, packet in enumerate(moved):
            packet.pts = packet.dts = place // 3 * 3 * packet.duration
        return moved

    remux(plain, folder / "equalpts.mkv", thirds)
    yield Clip("equalpts.mkv", "three frames at each time", tuple(range(48)), timed=False)
    ticks = packets(plain)[0].duration
    remux(plain, folder / "untimed.mkv", shifted(-5 * ticks), {"avoid_negative_ts": "disabled"})
    yield Clip("untimed.mkv", "the first five frames have no time", tuple(range(48)), timed=False)
    (folder / "negative.mp4").write_bytes(early((folder / "bframes.mp4").read_bytes(), 7 * ticks))
    yield Clip("negative.mp4", "starts before zero", tuple(range(60)), even(60, -5 / RATE))
    # Times of MPEG-TS have 33 bits, at 90 kHz: these pass their end after 20 frames.
    ticks_until_wrap = (1 << 33) * ticks * RATE // 90_000 - 20 * ticks
    container = {"mpegts_copyts": "1", "avoid_negative_ts": "disabled"}
    remux(folder / "bframes.mp4", folder / "wrap.ts", shifted(ticks_until_wrap), container)
    yield Clip("wrap.ts", "times that wrap around", tuple(range(60)))
    (folder / "rotated.mp4").write_bytes(rotated(plain.read_bytes()))
    yield Clip("rotated.mp4", "rotated by the display matrix", tuple(range(48)), even(48), rotation=-90)
    avi = encode(folder / "honest.avi", "mpeg4", range(40), gop=10, bit_rate=1_000_000)
    for name, frames in {"more.avi": 400, "fewer.avi": 9}.items():
        (folder / name).write_bytes(lying(avi.read_bytes(), frames))
        yield Clip(name, f"header counts {frames} frames", tuple(range(40)), even(40), header=frames)
    avi.unlink()
    yield two_streams(folder / "two.mp4")
    first = encode(folder / "first.ts", "libx264", range(30), X264, gop=10)
    behind = [4 * place for place in range(30, 60)]
    small = encode(folder / "small.ts", "libx264", range(30, 60), X264, size=(96, 64), times=behind, gop=10)
    (folder / "sizes.ts").write_bytes(first.read_bytes() + small.read_bytes())
    yield Clip("sizes.ts", "another size from the middle on", tuple(range(60)), sizes=2)
    again = encode(folder / "again.ts", "libx264", range(30, 60), X264, gop=10)
    (folder / "restart.ts").write_bytes(first.read_bytes() + again.read_bytes())
    yield Clip("restart.ts", "times that start over", tuple(range(60)), timed=False)
    for part in (first, small, again):
        part.unlink()


def made_by_bits(folder: Path) -> Iterable[Clip]:
    """Two packets for one frame, and two frames in one packet."""
    pairs = crafted.fields(folder / "fields.h264", 20)
    yield Clip("fields.h264", "field pairs, raw", tuple(range(20)), timed=False)
    for name in ("fields.mkv", "fields.ts"):
        crafted.field_packets(pairs, folder / name)
        yield Clip(name, f"field pairs in {name.partition('.')[2]}", tuple(range(20)), even(20))
    crafted.packed(folder / "packed.avi", 48)
    yield Clip("packed.avi", "MPEG-4 with packed B-frames", tuple(range(48)), timed=False)


def two_streams(path: Path) -> Clip:
    """Two video streams; the second, whose numbers begin at 100, is the default one."""
    with av.open(str(path), "w") as out:
        streams = []
        for size, rate in ((SIZE, 200_000), ((320, 192), 2_000_000)):
            stream = out.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
            stream.width, stream.height = size
            stream.pix_fmt, stream.codec_context.gop_size, stream.codec_context.bit_rate = "yuv420p", 12, rate
            stream.codec_context.thread_count = 1
            streams.append((stream, size))
        streams[1][0].disposition = av.stream.Disposition.default
        for place in range(40):
            for first, (stream, size) in zip((0, 100), streams, strict=True):
                frame = paint(first + place, size)
                frame.pts, frame.time_base = place, Fraction(1, RATE)
                out.mux(stream.encode(frame))
        for stream, _ in streams:
            out.mux(stream.encode(None))
    return Clip(path.name, "two video streams", tuple(range(100, 140)), even(40))


# The first and the last packet that are hit: of the frames 15 to 29, which no other frame refers to.
FLIPPED = (16, 29)

# Which of the pictures that no other is predicted from: one amid a group.
HIT = 5


def broken(folder: Path) -> Iterable[Clip]:
    """What is damaged, and what is no video at all."""
    whole = (folder / "faststart.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) * 6 // 10])
    yield Clip("cut.mp4", "cut, header at the start", tuple(range(60)), even(60), damaged=True)
    (start, _), (_, end) = (payloads(folder / "faststart.mp4")[place] for place in FLIPPED)
    (folder / "flips.mp4").write_bytes(flipped(whole, start, end, 40))
    yield Clip("flips.mp4", "flipped bits in the second GOP", tuple(range(60)), even(60), damaged=True)
    (start, end) = payloads(folder / "faststart.mp4")[disposable(folder / "faststart.mp4")[HIT][0]]
    (folder / "needless.mp4").write_bytes(flipped(whole, start + 16, end, 40))
    yield Clip("needless.mp4", "flipped bits in a picture that no other needs", tuple(range(60)), even(60), damaged=True)
    stream = remux(folder / "bframes.mp4", folder / "midgop.ts").read_bytes()
    (folder / "midgop.ts").write_bytes(stream[len(stream) // 3 // 188 * 188 :])
    yield Clip("midgop.ts", "starts amid a GOP", tuple(range(30, 60)))

    tail = (folder / "bframes.mp4").read_bytes()
    (folder / "headless.mp4").write_bytes(tail[: len(tail) * 6 // 10])
    yield Clip("headless.mp4", "cut, and with it the header", refused=True)
    (folder / "zero.mp4").write_bytes(b"")
    yield Clip("zero.mp4", "empty", refused=True)
    (folder / "text.mp4").write_bytes(b"no video at all, " * 200)
    yield Clip("text.mp4", "text", refused=True)
    yield sound(folder / "sound.m4a")
    listed = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:3\n#EXTINF:2.4,\nopengop.ts\n#EXT-X-ENDLIST\n"
    for name in ("list.m3u8", "list.ts"):
        (folder / name).write_text(listed)
        yield Clip(name, "a playlist", refused=True)
    (folder / "list.ffconcat").write_text("ffconcat version 1.0\nfile bframes.mp4\n")
    yield Clip("list.ffconcat", "a list of files", refused=True)
    (folder / "list.sdp").write_text("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\n")
    yield Clip("list.sdp", "an address to listen at", refused=True)


def sound(path: Path) -> Clip:
    """A tone, and no picture."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=48_000)
        tone = numpy.sin(numpy.arange(48_000) * 0.05).astype("float32")[None]
        for start in range(0, 47_000, 1024):
            frame = av.AudioFrame.from_ndarray(numpy.ascontiguousarray(tone[:, start : start + 1024]), "fltp", "mono")
            frame.sample_rate, frame.pts = 48_000, start
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return Clip(path.name, "sound only", refused=True)


def make(folder: Path) -> list[Clip]:
    """Every clip, in `folder`."""
    clips = [clip for kinds in (h264, sampled, hevc, others, odd, made_by_bits, broken) for clip in kinds(folder)]
    assert len({clip.name for clip in clips}) == len(clips)
    return clips


# --- what a clip really is ------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What PyAV makes of a clip, read from the first frame to the last by one thread."""

    numbers: tuple[int | None, ...] = ()
    seconds: tuple[float | None, ...] = ()
    shas: tuple[str, ...] = ()
    sizes: int = 0
    forms: tuple[str, ...] = ()
    b_frames: int = 0
    corrupt: int = 0
    rotation: int = 0
    counted: int = 0
    # NAL unit types of H.264 and HEVC, hidden packets, packets without a time.
    nals: frozenset[int] = frozenset()
    discarded: int = 0
    untimed: int = 0
    packets: int = 0
    error: str = ""


def seen(path: Path) -> Seen:
    found = Seen()
    rows: list[exact.Picture] = []
    try:
        with av.open(str(path)) as opened:
            stream = opened.streams.best("video")
            if stream is None:
                return Seen(error="no video stream")
            found.counted = stream.frames
            nals: set[int] = set()
            for packet in opened.demux(stream):
                if packet.size:
                    found.packets += 1
                    found.discarded += packet.is_discard
                    found.untimed += packet.pts is None
                    nals |= units(stream.codec_context, bytes(packet))
            found.nals = frozenset(nals)
        for frame, base in exact.frames(path, tolerant=True):
            found.rotation = frame.rotation
            found.b_frames += frame.pict_type == av.video.frame.PictureType.B
            rows.append(exact.picture(frame, base))
    except av.FFmpegError as error:
        found.error = f"{type(error).__name__}"
    found.numbers = tuple(number_in(row) for row in rows)
    found.seconds = tuple(row.pts_seconds for row in rows)
    found.shas = tuple(row.sha256() for row in rows)
    found.sizes = len({(row.width, row.height) for row in rows})
    found.forms = tuple(sorted({row.form for row in rows}))
    found.corrupt = sum(row.corrupt for row in rows)
    return found


def units(context: av.VideoCodecContext, data: bytes) -> set[int]:
    """NAL unit types of a packet."""
    if context.name not in ("h264", "hevc"):
        return set()
    extra = context.extradata or b""
    heads = []
    if extra[:1] == b"\x01":
        place = 0
        while place + 4 < len(data):
            heads.append(data[place + 4])
            place += 4 + int.from_bytes(data[place : place + 4], "big")
    else:
        place = data.find(b"\0\0\1")
        while 0 <= place < len(data) - 3:
            heads.append(data[place + 3])
            place = data.find(b"\0\0\1", place + 3)
    return {head & 31 if context.name == "h264" else head >> 1 & 63 for head in heads}


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for clip in make(folder):
        path = folder / clip.name
        found = seen(path)
        right = found.numbers == clip.numbers
        print(
            f"{clip.name:18} {path.stat().st_size:7} bytes  {len(found.numbers):3} frames of {found.packets:3} packets,"
            f" header {found.counted:3}, {'numbers right' if right else 'numbers ' + str(found.numbers)[:200]},"
            f" {'/'.join(found.forms)}, B {found.b_frames}, hidden {found.discarded}, untimed {found.untimed},"
            f" corrupt {found.corrupt}, sizes {found.sizes}, turn {found.rotation}, NAL {sorted(found.nals)} {found.error}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
