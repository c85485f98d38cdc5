"""What one frame of a long video costs at the origin: its own unit, and not the file."""

import time
from fractions import Fraction
from pathlib import Path

import av
import painted
import pytest
from conftest import SEED, start, stop
from held import children, pss
from videos import Served, counters, origin_bytes

GOP = 250
GOPS = 10
SIZE = (320, 192)
MEBIBYTE = 1 << 20

# Beside the unit: what is read to find out where it lies, and what ranges are rounded up by.
SHARE_MAX = 1.3


def long(folder: Path) -> dict[str, Path]:
    """One group of pictures, coded once and muxed many times: about four mebibytes each, so that a file is not small change."""
    quality = {"preset": "ultrafast", "qp": "16", "x264-params": f"keyint={GOP}:min-keyint={GOP}:scenecut=0:bframes=0"}
    # Without B-frames: dts is pts, and a group follows another without a seam.
    once = painted.encode(folder / "once.mkv", "libx264", range(GOP), quality, size=SIZE, gop=GOP)
    packets = painted.packets(once)
    files = {
        "end.mp4": (GOPS, {}),
        "start.mp4": (GOPS, {"movflags": "faststart"}),
        "long.mkv": (4, {}),
        "long.ts": (4, {}),
    }
    for name, (gops, container) in files.items():
        with av.open(str(once)) as opened, av.open(str(folder / name), "w", options=container) as out:
            stream = out.add_stream_from_template(opened.streams.video[0])
            for number in range(gops * GOP):
                packet = av.Packet(packets[number % GOP].data)
                packet.stream, packet.time_base = stream, Fraction(1, painted.RATE)
                packet.pts = packet.dts = number
                packet.duration, packet.is_keyframe = 1, number % GOP == 0
                out.mux(packet)
    once.unlink()
    painted.encode(folder / "long.avi", "mpeg4", [*range(GOP)] * 2, {"q:v": "2"}, size=SIZE, gop=GOP, bit_rate=20_000_000)
    return {path.name: path for path in folder.iterdir()}


def spans(path: Path) -> list[tuple[int, int]]:
    """Where each group of pictures lies in the file: from its first packet to the next one's."""
    with av.open(str(path)) as opened:
        rows = [(packet.pos, packet.size, packet.is_keyframe) for packet in opened.demux(opened.streams.video[0]) if packet.size]
    keys = [place for place, (_, _, key) in enumerate(rows) if key] + [len(rows)]
    ends = [rows[key][0] for key in keys[1:-1]] + [path.stat().st_size]
    return list(zip((rows[key][0] for key in keys[:-1]), ends, strict=True))


def header(path: Path) -> int:
    """Bytes of an MP4 beside its media data."""
    place, total, end = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while place < end:
            file.seek(place)
            data = file.read(16)
            size, kind = int.from_bytes(data[:4], "big"), data[4:8]
            if kind == b"mdat":
                size = size if size != 1 else int.from_bytes(data[8:], "big")
            else:
                total += size
            place += size
    return total


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    found = long(folder)
    print(f"seed {SEED};", ", ".join(f"{name} {path.stat().st_size >> 20} MiB" for name, path in found.items()))
    assert found["end.mp4"].stat().st_size >= 30 * MEBIBYTE
    return folder, found


@pytest.fixture
def cluster(files, tmp_path):
    """A node that has read nothing yet, for each test: so that what it reads is what that test costs."""
    cluster = start(files[0], tmp_path)
    yield cluster
    stop(cluster)


def read(of: Served, cluster, index: int) -> tuple[int, int]:
    """A frame's number, and what it cost."""
    before = origin_bytes(cluster)
    number = painted.number_of(of.rgb(index))
    return number, origin_bytes(cluster) - before


@pytest.mark.parametrize("name", ["start.mp4", "end.mp4"])
def test_a_frame_of_an_mp4_costs_its_unit(files, cluster, name):
    """Opened by its header alone, wherever that stands; then one unit a frame, and nothing for one that is held."""
    path = files[1][name]
    units, head, whole = spans(path), header(path), path.stat().st_size
    assert len(units) == GOPS
    with cluster.client() as client:
        of = Served.of(client, cluster, name)
        opened = origin_bytes(cluster)
        assert of.video.num_frames == GOPS * GOP
        costs = []
        for unit, place in ((7, 131), (2, 244)):
            number, cost = read(of, cluster, unit * GOP + place)
            assert number == place
            costs.append((cost, units[unit][1] - units[unit][0]))
        again = [read(of, cluster, 7 * GOP + 131), read(of, cluster, 7 * GOP + 130)]
    print(f"{name}: {whole} bytes, header {head}; opened for {opened}; frames cost {costs}, then {[cost for _, cost in again]}")
    assert opened + costs[0][0] <= SHARE_MAX * (costs[0][1] + head)
    assert costs[1][0] <= SHARE_MAX * costs[1][1]
    assert [number for number, _ in again] == [131, 130]
    assert again[0][1] == 0 and again[1][1] <= SHARE_MAX * costs[0][1]


def test_a_video_read_on_is_decoded_ahead(cluster):
    """Who wants the frames behind the last ones finds more of them made; who wants others pays for those alone."""
    with cluster.client() as client:
        of = Served.of(client, cluster, "start.mp4")

        def decoded(indices: range) -> int:
            before = counters(cluster)["framecache_units_total"]
            assert of.numbers(of.at(indices)) == [index % GOP for index in indices]
            return int(counters(cluster)["framecache_units_total"] - before)

        onwards = [decoded(range(at, at + 4)) for at in range(0, 248, 4)]
        assert onwards[:2] == [1, 1] and sum(onwards) <= 6, onwards
        assert [decoded(range(GOP + at, GOP + at + 1)) for at in (60, 20, 90, 21, 61)] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["long.mkv", "long.ts", "long.avi"])
def test_a_file_without_an_index_is_read_once(files, cluster, name):
    """One scan, whatever is asked for afterwards; then one unit a frame."""
    path = files[1][name]
    units, whole = spans(path), path.stat().st_size
    with cluster.client() as client:
        of = Served.of(client, cluster, name)
        count = of.video.num_frames
        opened = origin_bytes(cluster)
        unit = len(units) - 1
        number, cost = read(of, cluster, unit * GOP + 77)
        scanned = origin_bytes(cluster)
        other, more = read(of, cluster, 33)
    print(f"{name}: {whole} bytes; opened for {opened}; frames cost {cost} and {more}; units {[end - at for at, end in units]}")
    assert (number, other) == (77, 33) and count == len(units) * GOP
    assert scanned <= SHARE_MAX * (whole + units[unit][1] - units[unit][0])
    assert more <= SHARE_MAX * (units[0][1] - units[0][0])


def test_metadata_of_a_video_is_found_once(files, cluster):
    """A second client, and a second look, cost nothing at the origin."""
    with cluster.client() as client, cluster.client() as other:
        Served.of(client, cluster, "end.mp4")
        before = origin_bytes(cluster)
        assert Served.of(other, cluster, "end.mp4").video.num_frames == GOPS * GOP
        Served.of(client, cluster, "end.mp4")
        assert origin_bytes(cluster) == before


# --- a gibibyte -----------------------------------------------------------------------------------------------------------------

GIBIBYTE = 1 << 30

# Frames of noise, so that a group of pictures is some sixteen mebibytes, and a gibibyte has the number of units that films have.
LARGE_SIZE = (640, 384)
LARGE = {
    "start.mp4": {"movflags": "faststart"},
    "end.mp4": {},
    "large.mkv": {},
    "large.ts": {},
    "large.h264": {},
    "large.avi": {},
}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """One group of pictures of H.264, and one of MPEG-4."""
    folder = tmp_path_factory.mktemp("once")
    params = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:bframes=0:repeat-headers=1"
    quality = {"preset": "ultrafast", "qp": "14", "x264-params": params}
    h264 = painted.encode(folder / "once.mkv", "libx264", range(GOP), quality, size=LARGE_SIZE, gop=GOP)
    mpeg4 = painted.encode(
        folder / "once.avi", "mpeg4", range(GOP), {"qmin": "1", "qmax": "1"}, size=LARGE_SIZE, gop=GOP, bit_rate=90_000_000
    )
    return {"h264": h264, "mpeg4": mpeg4}


def large(path: Path, source: Path, container: dict[str, str]) -> int:
    """That group of pictures, as often as a gibibyte takes; how often. Without B-frames one follows another without a seam."""
    packets = painted.packets(source)
    gops = -(-GIBIBYTE // sum(len(packet.data) for packet in packets))
    with av.open(str(source)) as opened, av.open(str(path), "w", options=container) as out:
        stream = out.add_stream_from_template(opened.streams.video[0])
        for number in range(gops * GOP):
            packet = av.Packet(packets[number % GOP].data)
            packet.stream, packet.time_base = stream, Fraction(1, painted.RATE)
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, number % GOP == 0
            out.mux(packet)
    assert path.stat().st_size >= GIBIBYTE
    return gops


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_a_frame_of_a_gibibyte_costs_its_unit(once, tmp_path, name):
    """Read cold: of an MP4 the header and the unit, wherever the header stands; of all others one scan for version and cluster,
    and then the unit. A second frame costs its own."""
    folder, state = tmp_path / "data", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    path = folder / name
    gops = large(path, once["mpeg4" if name.endswith("avi") else "h264"], LARGE[name])
    whole, is_listed = path.stat().st_size, name.endswith("mp4")
    units, head = spans(path), header(path) if is_listed else 0
    # Of a raw stream the reader above knows no place.
    unit_bytes = [end - at for at, end in units] if len(units) == gops and units[0][1] else [whole // gops] * gops
    # Little of the file stays: what a frame costs is not what a scan has left behind.
    cluster = start(folder, state, nodes=2, memory="2GiB", disk="0", CACHE__RAW_RAM="64MiB")
    try:
        with cluster.client() as client, cluster.client() as other:
            begun = time.monotonic()
            of = Served.of(client, cluster, name)
            seconds, opened = time.monotonic() - begun, origin_bytes(cluster)
            assert of.video.num_frames == gops * GOP
            unit = gops * 2 // 3
            number, cost = read(of, cluster, unit * GOP + 131)
            second, more = read(of, cluster, (unit - 5) * GOP + 17)
            assert (number, second) == (131, 17)
            assert Served.of(other, cluster, name).video.num_frames == gops * GOP
            indexes = counters(cluster)["framecache_video_indexes_total"]
            held = pss(cluster.process.pid), sum(map(pss, children(cluster.process.pid)))
            assert origin_bytes(cluster) == opened + cost + more, "a second client costs nothing"
    finally:
        stop(cluster)
        path.unlink()
    print(
        f"{name}: {whole / MEBIBYTE:.0f} MiB, {gops} units of {unit_bytes[unit] / MEBIBYTE:.1f}; opened in {seconds:.1f} s for "
        f"{opened / MEBIBYTE:.2f} MiB, frames for {cost / MEBIBYTE:.2f} and {more / MEBIBYTE:.2f}; "
        f"node {held[0] / MEBIBYTE:.0f} MiB, decoders {held[1] / MEBIBYTE:.0f}"
    )
    assert indexes == 1
    assert more <= SHARE_MAX * unit_bytes[unit - 5] and cost <= SHARE_MAX * unit_bytes[unit]
    # That a raw stream has no times is found by a scan; then it is decoded to know its frames: it is read twice.
    scans = 2 if name.endswith("h264") else 1
    assert opened <= scans * whole * 1.02 if not is_listed else opened + cost <= SHARE_MAX * (unit_bytes[unit] + head)
