"""Clips of many videos in one call: every frame is the one that was asked for, and one bad clip costs itself alone."""

import gc
import random

import framecache as fc
import numpy
import painted
import pytest
from conftest import SEED, picture, start, stop
from videos import TIMEOUT, counters

# By name: its frames' numbers, and their size.
VIDEOS = {
    "a.mp4": (range(48), painted.SIZE),
    "b.mkv": (range(60, 108), painted.SIZE),
    "c.ts": (range(120, 150), painted.SIZE),
    "small.mp4": (range(160, 190), (96, 64)),
}
GOP = 12
SMALL = {"size": (80, 48), "timeout": TIMEOUT}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder, state = tmp_path_factory.mktemp("many"), tmp_path_factory.mktemp("many-state")
    settings = {
        "preset": "veryfast",
        "crf": "26",
        "x264-params": f"scenecut=0:bframes=2:keyint={GOP}:min-keyint={GOP}:open-gop=0",
    }
    for name, (numbers, size) in VIDEOS.items():
        painted.encode(folder / name, "libx264", numbers, settings, size=size, gop=GOP, bframes=2)
    pictures = [picture(96, 96, SEED + number) for number in range(3)]
    pictures[0].save(folder / "ball.gif", save_all=True, append_images=pictures[1:])
    (folder / "text.mp4").write_bytes(b"no video at all, " * 200)
    # The header is there, and the frames of the second half are not.
    whole = painted.remux(folder / "a.mp4", folder / "cut.mp4", container={"movflags": "faststart"}).read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) * 6 // 10])
    print(f"seed {SEED}; corpus: {len(VIDEOS) + 3} generated")
    cluster = start(folder, state, nodes=2)
    yield cluster
    stop(cluster)


@pytest.fixture(scope="module")
def client(cluster):
    with cluster.client() as client:
        yield client


def numbers(frames) -> list[int | None]:
    return [painted.number_of(numpy.asarray(frame)) for frame in frames]


def drawn(dice: random.Random, names, clips: int, frames: int) -> list[tuple[str, list[int]]]:
    """Clips of random frames, in no order, some many times and some counted from the end."""
    chosen = [dice.choice(names) for _ in range(clips)]
    counts = {name: len(numbers) for name, (numbers, _) in VIDEOS.items()}
    return [(name, [dice.randrange(-counts[name], counts[name]) for _ in range(frames)]) for name in chosen]


def test_every_frame_is_the_one_asked_for(cluster, client):
    """Forty clips of all videos, in one call: numbers, indices, times and pixels are those of a call for each."""
    asked = drawn(random.Random(SEED), sorted(VIDEOS), 40, 9)
    clips = client.clips([(cluster.uri(name), indices) for name, indices in asked], **SMALL)
    assert len(clips) == 40 and all(clips.valid) and clips.errors == {}
    assert clips.keys == [cluster.uri(name) for name, _ in asked]
    videos = {name: client.video(cluster.uri(name), timeout=TIMEOUT) for name in VIDEOS}
    for (name, indices), frames in zip(asked, clips, strict=True):
        count = len(VIDEOS[name][0])
        assert frames.indices == [index % count for index in indices]
        assert numbers(frames) == [VIDEOS[name][0][index] for index in indices], (name, indices)
        alone = videos[name].get_frames_at(indices, **SMALL)
        assert frames.pts_seconds == alone.pts_seconds and frames.duration_seconds == alone.duration_seconds
        assert numpy.array_equal(numpy.asarray(frames.data), numpy.asarray(alone.data))
        assert {frame.version for frame in frames} == {videos[name].version}


def test_depth_transport_and_stream_are_as_of_one_video(cluster, client):
    """16 bits, also into memory of the caller's; planes that become the same RGB; a stream by its index, or why it is none."""
    asked, rgb = [(cluster.uri("a.mp4"), [3, -1]), (cluster.uri("a.mp4"), [14, 3])], {"timeout": TIMEOUT}
    plain = numpy.asarray(client.clips(asked, **rgb).data)
    out = numpy.ones(plain.shape, numpy.uint16)
    deep = [client.clips(asked, dtype="u16", **rgb), client.clips(asked, dtype="u16", out=out, **rgb)]
    for clips in deep:
        assert clips.data.dtype == clips[1].data.dtype == clips[1][0].dtype == "uint16"
        assert numpy.array_equal(numpy.asarray(clips.data), plain)
        assert numpy.array_equal(numpy.asarray(clips[1].data), plain[1])
    assert deep[1].data.address == out.ctypes.data and numpy.array_equal(out, plain)
    with pytest.raises((ValueError, BufferError)):
        client.clips(asked, out=out, **rgb)
    for settings in ({"transport": "yuv420"}, {"stream": 0}, {"transport": "yuv420", "stream": 0}):
        assert numpy.array_equal(numpy.asarray(client.clips(asked, **rgb, **settings).data), plain), settings
    with pytest.raises(fc.UnsupportedError):
        client.clips(asked, stream=5, **rgb)
    for wrong in ({"transport": "rgba"}, {"stream": -1}):
        with pytest.raises(ValueError):
            client.clips(asked, **rgb, **wrong)
    with pytest.raises(fc.UnsupportedError):
        client.clips(asked, dtype="u16", mode="gray", **rgb)


def test_a_frame_is_decoded_once(cluster, client):
    """However often it is asked for, and by however many clips; and frames of one group of pictures together."""
    settings = {"size": (72, 40), "timeout": TIMEOUT}
    client.clips([(cluster.uri("a.mp4"), [0])], **SMALL)
    before = counters(cluster)["framecache_units_total"]
    asked = [(cluster.uri("a.mp4"), [14, 20, -34, 14]), (cluster.uri("a.mp4"), [20, 14, 13, 23])]
    clips = client.clips(asked, **settings)
    assert [numbers(frames) for frames in clips] == [[14, 20, 14, 14], [20, 14, 13, 23]]
    assert counters(cluster)["framecache_units_total"] == before + 1
    client.clips(asked[::-1], **settings)
    assert counters(cluster)["framecache_units_total"] == before + 1


def test_clips_alike_are_one_array(cluster, client):
    """Of several videos, and nothing is copied: frames lie in clips, clips in the whole, for buffers and DLPack alike."""
    asked = [(cluster.uri(name), indices) for name, indices in drawn(random.Random(SEED + 1), ["a.mp4", "b.mkv", "c.ts"], 6, 4)]
    clips = client.clips(asked, "image?short=48", timeout=TIMEOUT)
    whole = clips.data
    assert whole.shape == (6, 4, 48, 80, 3)
    assert numpy.asarray(whole).ctypes.data == numpy.from_dlpack(whole).ctypes.data == whole.address
    for place, frames in enumerate(clips):
        assert frames.data.shape == (4, 48, 80, 3)
        assert frames.data.address == whole.address + place * 4 * 48 * 80 * 3
        assert frames[1].address == frames.data.address + 48 * 80 * 3
        assert numpy.array_equal(numpy.from_dlpack(frames.data), numpy.asarray(whole)[place])
    want = numpy.asarray(whole).copy()
    array = numpy.from_dlpack(whole)
    del clips, frames, whole
    gc.collect()
    client.clips(asked[::-1], "image?short=48", timeout=TIMEOUT)
    assert numpy.array_equal(array, want)


@pytest.mark.parametrize("lengths", [(2, 3), (2, 2)], ids=["lengths", "sizes"])
def test_clips_that_differ_are_named(cluster, client, lengths):
    """Each is one array; as one together they are refused, and the shapes told."""
    names = ["a.mp4", "b.mkv"] if lengths[0] != lengths[1] else ["a.mp4", "small.mp4"]
    clips = client.clips([(cluster.uri(name), range(count)) for name, count in zip(names, lengths, strict=True)], timeout=TIMEOUT)
    for frames, name, count in zip(clips, names, lengths, strict=True):
        width, height = VIDEOS[name][1]
        assert frames.data.shape == (count, height, width, 3) and numbers(frames) == list(VIDEOS[name][0][:count])
    with pytest.raises(ValueError) as caught:
        _ = clips.data
    assert all(str(list(frames.data.shape)) in str(caught.value) for frames in clips)


def test_memory_bounds_what_is_guessed(cluster):
    """Where the clips together pass the client's memory each lies on its own, as pictures do; by a spec's size they may."""
    with cluster.client(memory="4MiB") as client:
        asked = [(cluster.uri("a.mp4"), range(48)), (cluster.uri("b.mkv"), range(48))]
        clips = client.clips(asked, timeout=TIMEOUT)
        assert [frames.data.shape for frames in clips] == [(48, 96, 160, 3)] * 2
        with pytest.raises(ValueError, match="memory"):
            _ = clips.data
        assert client.clips(asked, size=(160, 96), timeout=TIMEOUT).data.shape == (2, 48, 96, 160, 3)
        frames = client.clips([(cluster.uri("a.mp4"), [*range(48)] * 2)], timeout=TIMEOUT)[0]
        assert numbers(frames) == [*range(48)] * 2


def test_planes_and_animations(cluster, client):
    """Planes as decoded, and frames of animations beside those of videos."""
    clips = client.clips([(cluster.uri("a.mp4"), [3, 4]), (cluster.uri("b.mkv"), [5, 6])], layout="planes", timeout=TIMEOUT)
    assert clips.data.shape == (2, 2, 1, 1, 160 * 96 * 3 // 2)
    luma = numpy.asarray(clips.data)[..., : 160 * 96].reshape(2, 2, 96, 160)
    assert [[painted.number_of(frame) for frame in frames] for frames in luma] == [[3, 4], [65, 66]]
    clips = client.clips([(cluster.uri("ball.gif"), [2, 0]), (cluster.uri("a.mp4"), [1, 2])], size=(96, 96), timeout=TIMEOUT)
    assert clips.data.shape == (2, 2, 96, 96, 3) and clips[0].pts_seconds == [0, 0] and clips[1].pts_seconds == [0.04, 0.08]
    assert numpy.array_equal(numpy.asarray(clips[0][1]), numpy.asarray(client.video(cluster.uri("ball.gif"))[0]))


def test_selections_as_text(cluster, client):
    """In place of indices; times outside are wrong values, as they are of one video."""
    uris = [cluster.uri("a.mp4"), cluster.uri("b.mkv")]
    clips = client.clips([(uris[0], "video?uniform=4"), (uris[1], "video?fps=5&from=0.4&to=1.2")], **SMALL)
    assert [frames.indices for frames in clips] == [[0, 15, 31, 47], [10, 15, 20, 25]]
    assert clips.data.shape == (2, 4, 48, 80, 3) and numbers(clips[1]) == [70, 75, 80, 85]
    with pytest.raises(ValueError, match=r"outside"):
        client.clips([(uris[0], "video?at=99")], **SMALL)
    for wrong in ("video?uniform=0", "image", "video?uniform=4&short=9"):
        with pytest.raises(ValueError):
            client.clips([(uris[0], wrong)], **SMALL)


@pytest.mark.parametrize("on_error", ["raise", "skip", "fill"])
def test_an_index_outside_is_raised(cluster, client, on_error):
    """As an `IndexError` that names the indices there are and the video, whatever `on_error` says."""
    for index in (30, -31, 1 << 40, -(1 << 40)):
        with pytest.raises(IndexError, match=r"want -30 to 29") as caught:
            client.clips([(cluster.uri("a.mp4"), [0, 47]), (cluster.uri("c.ts"), [1, index])], on_error=on_error, **SMALL)
        assert caught.value.uri == cluster.uri("c.ts")
    with pytest.raises(ValueError):
        client.clips([(cluster.uri("ball.gif"), [-1])], on_error=on_error, **SMALL)


def bad(cluster) -> list[tuple[str, list[int]]]:
    """Good clips in the second and the last place, between bad ones; of the fourth one frame is good."""
    asked = {"text.mp4": [0, 1], "a.mp4": [7, 6], "absent.mp4": [0, 1], "cut.mp4": [2, 40], "b.mkv": [-1, 0]}
    return [(cluster.uri(name), indices) for name, indices in asked.items()]


def check_errors(cluster, clips):
    assert sorted(clips.errors) == [0, 2, 3]
    assert isinstance(clips.errors[2], fc.NotFoundError) and clips.errors[2].uri == cluster.uri("absent.mp4")
    assert all(isinstance(clips.errors[place], (fc.UndecodableError, fc.UnsupportedError)) for place in (0, 3))


def test_a_bad_clip_raises_by_default(cluster, client):
    for place in (0, 2, 3):
        with pytest.raises(fc.FramecacheError) as caught:
            client.clips([bad(cluster)[1], bad(cluster)[place]], **SMALL)
        assert caught.value.uri == bad(cluster)[place][0]


@pytest.mark.parametrize("own", [False, True], ids=["received", "out"])
def test_skip_leaves_bad_clips_out(cluster, client, own):
    """The others are one array, in order, with the keys that remain."""
    out = numpy.full((5, 2, 48, 80, 3), 7, "uint8") if own else None
    clips = client.clips(bad(cluster), on_error="skip", out=out, **SMALL)
    check_errors(cluster, clips)
    assert clips.keys == [cluster.uri("a.mp4"), cluster.uri("b.mkv")] and clips.valid == [True, True] and len(clips) == 2
    assert clips.data.shape == (2, 2, 48, 80, 3)
    for frames in (clips, numpy.asarray(clips.data)):
        assert [numbers(part) for part in frames] == [[7, 6], [107, 60]]
    if own:
        assert clips.data.address == out.ctypes.data and numpy.array_equal(out[:2], numpy.asarray(clips.data))


@pytest.mark.parametrize("own", [False, True], ids=["received", "out"])
def test_fill_keeps_their_place(cluster, client, own):
    """Bad clips are zeros, all of them, and not valid, also in memory that held something else."""
    out = numpy.full((5, 2, 48, 80, 3), 7, "uint8") if own else None
    clips = client.clips(bad(cluster), on_error="fill", out=out, **SMALL)
    check_errors(cluster, clips)
    assert clips.valid == [False, True, False, False, True] and clips.keys == [uri for uri, _ in bad(cluster)]
    data = numpy.asarray(clips.data)
    assert data.shape == (5, 2, 48, 80, 3) and not data[[0, 2, 3]].any()
    assert [numbers(clips[place]) for place in (1, 4)] == [[7, 6], [107, 60]]
    assert clips[3].data.shape == (2, 48, 80, 3) and clips[3][0].version is None and clips[1][0].version


def test_bad_clips_without_a_size(cluster, client):
    """Where the spec gives no size they take the others'; where the others have several, or there are none, they are empty."""
    clips = client.clips(bad(cluster)[:3], on_error="fill", short=48, timeout=TIMEOUT)
    assert clips.data.shape == (3, 2, 48, 80, 3) and not numpy.asarray(clips.data)[[0, 2]].any()
    asked = [*bad(cluster)[:2], (cluster.uri("small.mp4"), [0, 1])]
    clips = client.clips(asked, on_error="fill", timeout=TIMEOUT)
    assert [frames.data.shape for frames in clips] == [(2, 0, 0, 3), (2, 96, 160, 3), (2, 64, 96, 3)]
    assert client.clips(bad(cluster)[:1], on_error="skip", timeout=TIMEOUT).data.shape == (0, 2, 0, 0, 3)
    assert client.clips(bad(cluster)[:1], on_error="fill", **SMALL).data.shape == (1, 2, 48, 80, 3)
    assert client.clips([], **SMALL).data.shape == (0, 0, 48, 80, 3)
    assert client.clips([(cluster.uri("a.mp4"), [])], **SMALL).data.shape == (1, 0, 48, 80, 3)


def test_out_is_received_into(cluster, client):
    """`out=` is written directly, also where the size follows from the videos; only if it fits exactly."""
    asked = [(cluster.uri("a.mp4"), [5, 47, 0]), (cluster.uri("c.ts"), [29, 1, 1])]
    for spec, size in (({"size": (80, 48)}, (48, 80)), ({}, (96, 160)), ({"short": 32}, (32, 53))):
        out = numpy.full((2, 3, *size, 3), 9, "uint8")
        clips = client.clips(asked, out=out, timeout=TIMEOUT, **spec)
        assert clips.data.address == out.ctypes.data and clips[1].data.address == out[1].ctypes.data
        assert [numbers(frames) for frames in out] == [[5, 47, 0], [149, 121, 121]]
    for shape in ((2, 3, 48, 80, 4), (2, 2, 48, 80, 3), (3, 3, 48, 80, 3), (6, 48, 80, 3)):
        with pytest.raises(ValueError, match=r"out has shape"):
            client.clips(asked, out=numpy.zeros(shape, "uint8"), **SMALL)
    with pytest.raises(ValueError, match=r"as many frames"):
        client.clips([*asked, (cluster.uri("a.mp4"), [1])], out=out, **SMALL)
    with pytest.raises(BufferError):
        client.clips(asked, out=bytes(2 * 3 * 48 * 80 * 3), **SMALL)


NO_CLIPS = [
    "s3://abc/v",
    ["s3://abc/v"],
    [("s3://abc/v",)],
    [(1, [2])],
    [("s3://abc/v", 3)],
    [("s3://abc/v", [0.5])],
    5,
]


@pytest.mark.parametrize("wrong", NO_CLIPS, ids=repr)
def test_what_are_no_clips_is_refused(wrong):
    with pytest.raises(TypeError):
        fc.Client("127.0.0.1:9").clips(wrong)


def test_clips_are_a_sequence(cluster, client):
    """Indexing is Python's; a list stands for a pair, an array for a list."""
    clips = client.clips([[cluster.uri("a.mp4"), numpy.array([3, -1])], (cluster.uri("b.mkv"), range(2))], **SMALL)
    assert [numbers(frames) for frames in clips] == [[3, 47], [60, 61]]
    assert numbers(clips[-1]) == [60, 61] and repr(clips) == "<framecache.Clips: 2 clips [2, 2, 48, 80, 3], 0 not valid>"
    for index in (2, -3):
        with pytest.raises(IndexError):
            clips[index]


def test_a_deadline_is_kept(cluster, client):
    """Of a call as a whole; whoever cannot be reached is told of as such."""
    from conftest import ROOT

    with pytest.raises(fc.TimeoutError):
        client.clips([(cluster.uri("a.mp4"), range(48))] * 20, size=(79, 47), timeout=0.0005)
    with pytest.raises(ConnectionError):
        fc.Client("127.0.0.1:9", ca=ROOT / "client/tests/ca.pem", timeout=0.5).clips([("s3://abc/v", [0])], on_error="skip")
