"""Drop-ins beside the libraries whose place they take, on the same files. Runs where those are installed."""

import random

import clips
import numpy
import pytest
from conftest import SEED, start, stop

pytestmark = pytest.mark.peers

# Files in which all three find the same frames; what they disagree about (open groups of pictures in other containers, edit
# lists, AVI, raw streams) is judged by test_videos.py, by the frames' own numbers.
AGREED = ["bframes.mp4", "faststart.mp4", "vfr.mp4", "rotated.mp4", "hevc.mp4", "vp9.webm", "late.mp4", "mpeg4.mp4"]

# decord 0.6 gives other frames of these when it is asked backwards or at random: the frames' own numbers say so.
DECORD_MISSES = ["late.mp4", "mpeg4.mp4"]

# Between the exact rule and swscale's fast path.
LEVELS_MAX = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder, state = tmp_path_factory.mktemp("clips"), tmp_path_factory.mktemp("clips-state")
    clips.make(folder)
    cluster = start(folder, state)
    with cluster.client() as client:
        yield cluster, client
    stop(cluster)


@pytest.fixture(scope="module")
def torchcodec():
    pytest.importorskip("torch")
    try:
        from torchcodec import decoders
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchcodec, or FFmpeg's libraries that it loads: {str(error)[:200]}")
    return decoders


@pytest.fixture(scope="module")
def decord():
    return pytest.importorskip("decord")


@pytest.mark.parametrize("name", AGREED)
def test_frames_are_torchcodecs(served, torchcodec, name):
    """Number, times, shapes and pixels; by index, by range, by time, and resampled."""
    from framecache.torchcodec import VideoDecoder

    cluster, client = served
    theirs, ours = torchcodec.VideoDecoder(str(cluster.folder / name)), VideoDecoder(cluster.uri(name), client=client)
    count = len(theirs)
    assert len(ours) == count and ours.metadata.rotation == theirs.metadata.rotation
    assert (ours.metadata.width, ours.metadata.height) == (theirs.metadata.width, theirs.metadata.height)
    assert ours.metadata.begin_stream_seconds == pytest.approx(theirs.metadata.begin_stream_seconds, abs=1e-6)
    dice = random.Random(SEED)
    begin, end = theirs.metadata.begin_stream_seconds, min(theirs.metadata.end_stream_seconds, ours.metadata.end_stream_seconds)
    times = [dice.uniform(begin, end) for _ in range(10)]
    for call in (
        lambda decoder: decoder.get_frames_at(dice_of(count)),
        lambda decoder: decoder.get_frames_in_range(2, count, 5),
        lambda decoder: decoder.get_frames_played_at(times),
        lambda decoder: decoder.get_frames_played_in_range(begin, (begin + end) / 2),
        lambda decoder: decoder.get_frames_played_in_range(begin, (begin + end) / 2, fps=7),
    ):
        want, got = call(theirs), call(ours)
        assert got.data.shape == want.data.shape and got.data.dtype == want.data.dtype
        assert got.pts_seconds.tolist() == pytest.approx(want.pts_seconds.tolist(), abs=1e-6)
        assert (got.data.int() - want.data.int()).abs().max() <= LEVELS_MAX


def dice_of(count: int) -> list[int]:
    return random.Random(SEED).choices(range(-count, count), k=20)


@pytest.mark.parametrize("name", [name for name in AGREED if name not in DECORD_MISSES])
def test_frames_are_decords(served, decord, name):
    """Number, shapes and pixels, as they are and of another size."""
    from framecache.decord import VideoReader

    cluster, client = served
    theirs, ours = decord.VideoReader(str(cluster.folder / name)), VideoReader(cluster.uri(name), client=client)
    count = len(theirs)
    assert len(ours) == count
    for indices in (range(count), dice_of(count)):
        want, got = theirs.get_batch(list(indices)).asnumpy(), ours.get_batch(indices).asnumpy()
        assert got.shape == want.shape and numpy.abs(got.astype(int) - want).max() <= LEVELS_MAX
    # Of widths whose lines need padding decord 0.6 makes four channels.
    small = {"width": 64, "height": 32}
    want = decord.VideoReader(str(cluster.folder / name), **small)[5].asnumpy()
    got = VideoReader(cluster.uri(name), client=client, **small)[5].asnumpy()
    assert got.shape == want.shape and numpy.abs(got.astype(int) - want).mean() < 8
