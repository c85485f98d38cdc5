"""Videos: whatever is asked for, however often and in whatever order, the frame that comes is the one that was asked for."""

import bisect
import contextlib
import math
import random
import re

import clips
import exact
import framecache as fc
import numpy
import painted
import pytest
from conftest import SEED, start, stop
from videos import REFUSED, TIMEOUT, Served, each


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The clips by name, the cluster that serves them, and a client."""
    folder, state = tmp_path_factory.mktemp("clips"), tmp_path_factory.mktemp("clips-state")
    found = {clip.name: clip for clip in clips.make(folder)}
    print(f"seed {SEED}; corpus: {len(found)} generated")
    cluster = start(folder, state, nodes=2)
    with cluster.client() as client:
        yield found, cluster, client
    stop(cluster)


@pytest.fixture(scope="module")
def good(made):
    """The clips of which every frame decodes."""
    found, _, _ = made
    return [clip for clip in found.values() if not clip.refused and not clip.damaged]


@pytest.fixture
def served(made):
    """The video of a name."""
    _, cluster, client = made
    return lambda name: Served.of(client, cluster, name)


def test_frames_are_counted_and_not_believed(good, served):
    """`num_frames` is what there is, whatever the header says; that is told beside it."""

    def check(clip):
        video = served(clip.name).video
        assert video.num_frames == len(video) == len(clip.numbers)
        assert video.rotation % 360 == clip.rotation % 360
        if clip.header is not None:
            assert video.num_frames_header == clip.header
        assert video.size > 0 and video.version and video.codec and video.pix_fmt and not video.damaged
        assert video.keyframes == sorted(set(video.keyframes)) and set(video.keyframes) <= set(range(len(video)))

    each(good, check)


def test_frames_by_index(good, served):
    """One at a time: forwards, backwards, at random."""

    def check(clip):
        video, count = served(clip.name).video, len(clip.numbers)
        dice = random.Random(SEED)
        for order in (range(count), range(count - 1, -1, -1), dice.choices(range(-count, count), k=20)):
            for index in order:
                assert painted.number_of(numpy.asarray(video[index])) == clip.numbers[index], index

    each(good, check)


def test_frames_together(good, served):
    """In one call: all of them, some many times, in no order; counted from the end, too; and by slices."""

    def check(clip):
        of, count = served(clip.name), len(clip.numbers)
        dice = random.Random(SEED)
        mixed = [index for index in range(count) for _ in range(dice.randrange(3))]
        dice.shuffle(mixed)
        for indices in (range(count), mixed, [0, -1, 0, -1], range(-count, 0), dice.sample(range(count), 5)):
            # Where the size changes, a call names one.
            frames = of.at(indices, **({"size": painted.SIZE} if clip.sizes > 1 else {}))
            assert frames.indices == [index % count for index in indices]
            assert of.numbers(frames) == [clip.numbers[index] for index in indices]
        if clip.sizes == 1:
            for cut in (slice(None, None, 7), slice(-3, None), slice(5, 2), slice(9, 3, -2)):
                assert of.numbers(of.video[cut]) == list(clip.numbers[cut]), cut

    each(good, check)


def test_frames_by_time(good, served):
    """A frame is played from its own time until the next one's; the last, to the end of the stream."""

    def check(clip):
        of, count = served(clip.name), len(clip.numbers)
        small = {"size": (64, 48)}
        told = of.at(range(count), **small)
        starts = list(told.pts_seconds)
        made_up = of.video.pts_origin == "synthesized"
        assert starts == sorted(starts) and (len(set(starts)) == count or not (clip.timed or made_up))
        # AVI counts frames, and stores no time: what is told may be either.
        assert not (made_up and clip.timed) or clip.name.endswith(".avi"), "its own times are not told"
        if clip.seconds is not None:
            assert starts == pytest.approx(clip.seconds, abs=2e-3)
        ends = [*starts[1:], of.video.end_stream_seconds]
        assert of.video.begin_stream_seconds == starts[0] and ends[-1] > starts[-1]
        # Exactly when it begins, amid it, and right before the next one. Of frames with one time the last is played at it.
        for share in (0, 0.5, 0.999):
            asked = [start + share * (end - start) for start, end in zip(starts, ends, strict=True)]
            want = [bisect.bisect_right(starts, at) - 1 for at in asked]
            frames = of.video.get_frames_played_at(asked, timeout=TIMEOUT, **small)
            assert frames.indices == want and (want == list(range(count)) or not clip.timed), share
            assert of.numbers(frames) == [clip.numbers[index] for index in want]
            assert list(frames.pts_seconds) == [starts[index] for index in want]
        for index in random.Random(SEED).sample(range(count), 6):
            middle = (starts[index] + ends[index]) / 2
            want = clip.numbers[bisect.bisect_right(starts, middle) - 1]
            assert of.numbers(of.video.get_frames_played_at([middle], timeout=TIMEOUT, **small)) == [want]

    each(good, check)


def test_frames_of_a_range(good, served):
    """From the frame played at its start to the last that begins before its end; at a rate, those played at each tick."""

    def check(clip):
        of, count = served(clip.name), len(clip.numbers)
        small = {"size": (64, 48), "timeout": TIMEOUT}
        starts = list(of.at(range(count), size=(8, 8)).pts_seconds)
        ends = [*starts[1:], of.video.end_stream_seconds]
        # Where frames share a time, the last of them.
        first, last = (bisect.bisect_right(starts, starts[index]) - 1 for index in (count // 4, count // 2))
        # Off the middle, where a number of ticks may be a half, which doubles round either way.
        a, b = (starts[first] + ends[first]) / 2, (starts[last] + ends[last]) / 2 + 1e-4
        frames = of.video.get_frames_played_in_range(a, b, **small)
        assert frames.indices == list(range(first, last + 1))
        assert of.numbers(frames) == list(clip.numbers[first : last + 1])
        before = bisect.bisect_left(starts, starts[last])
        assert of.video.get_frames_played_in_range(starts[first], starts[last], **small).indices == list(range(first, before))
        for fps in (3, 10.5, 60):
            # A billionth more: a tick that is a frame's time may come out less in doubles.
            ticks = [a + tick / fps + 1e-9 for tick in range(math.floor((b - a) * fps + 0.5))]
            want = [bisect.bisect_right(starts, tick) - 1 for tick in ticks]
            assert of.video.get_frames_played_in_range(a, b, fps, **small).indices == want, fps
        whole = of.video.get_frames_played_in_range(starts[0], of.video.end_stream_seconds, **small)
        assert whole.indices == list(range(whole.indices[0], count)) and (whole.indices[0] == 0 or not clip.timed)

    each(good, check)


def test_frames_spread_evenly(good, served):
    """`get_frames_uniform`: the first and the last, and between them by whole numbers, rounded down; some repeat."""

    def check(clip):
        of, last = served(clip.name), len(clip.numbers) - 1
        for wanted in (1, 2, 8, 2 * last):
            frames = of.video.get_frames_uniform(wanted, timeout=TIMEOUT, size=(64, 48))
            assert frames.indices == [place * last // max(wanted - 1, 1) for place in range(wanted)]
            assert of.numbers(frames) == [clip.numbers[index] for index in frames.indices]
        with pytest.raises(ValueError):
            of.video.get_frames_uniform(0, timeout=TIMEOUT)

    each(good, check)


def test_planes_and_rgb_are_exact(made, good, served):
    """Every frame's planes are those of decoding from first to last, and its RGB is the exact rule's."""
    _, cluster, _ = made

    def check(clip):
        of = served(clip.name)
        found = list(exact.walk(cluster.folder / clip.name))
        together = [list(range(len(found)))] if clip.sizes == 1 else [[index] for index in range(len(found))]
        for indices in together:
            assert of.planes(indices) == [found[index].sha256() for index in indices]
            for index, frame in zip(indices, of.at(indices), strict=True):
                assert numpy.array_equal(numpy.asarray(frame), found[index].rgb()), index

    each(good, check)


def test_resized_frames_are_the_exact_ones_resized(made, served):
    """Conversion first, at the source's size, then Pillow's kernel."""
    from PIL import Image

    _, cluster, _ = made
    first = next(exact.walk(cluster.folder / "bframes.mp4")).rgb()
    for filter in ("bilinear", "bicubic"):
        size = (int(64 * 160 / 96), 64)
        want = Image.fromarray(first).resize(size, Image.Resampling[filter.upper()])
        assert numpy.array_equal(served("bframes.mp4").rgb(0, short=64, filter=filter), numpy.asarray(want))


def test_rotation_is_applied_when_asked_for(served):
    """By the display matrix, in quarter turns; otherwise pixels stay as they are coded."""
    of = served("rotated.mp4")
    plain = of.rgb(7)
    assert plain.shape == (96, 160, 3) and (of.video.width, of.video.height) == (160, 96)
    assert numpy.array_equal(of.rgb(7, orientation="apply"), numpy.rot90(plain, -1))


def test_a_frame_outside_is_an_index_error(made, good, served):
    """That names how many there are, for one that is outside among many inside, too."""

    def check(clip):
        of, count = served(clip.name), len(clip.numbers)
        for index in (count, -count - 1, 10**9, -(10**9)):
            with pytest.raises(IndexError, match=str(count)):
                of.video[index]
            with pytest.raises(IndexError, match=str(count)):
                of.at([0, index, 1], size=(8, 8))
        assert of.numbers(of.at([count - 1])) == [clip.numbers[-1]]

    each(good, check)


def test_a_time_outside_is_a_value_error(good, served):
    """That names begin and end; a time is never moved to the nearest frame."""

    def check(clip):
        video = served(clip.name).video
        begin, end = video.begin_stream_seconds, video.end_stream_seconds
        for outside in (end, end + 5, begin - 0.01, 1e18, -1e18, float("nan"), float("inf")):
            with pytest.raises(ValueError) as caught:
                video.get_frames_played_at([(begin + end) / 2, outside], timeout=TIMEOUT)
            said = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", str(caught.value))]
            for limit in (begin, end):
                assert any(abs(number - limit) < 0.01 for number in said), caught.value
        for a, b in ((begin - 1, end), (begin, end + 1), (end, begin)):
            with pytest.raises(ValueError):
                video.get_frames_played_in_range(a, b, timeout=TIMEOUT)
        with pytest.raises(ValueError):
            video.get_frames_played_in_range(begin, end, 0, timeout=TIMEOUT)

    each(good, check)


def test_what_is_no_video_is_refused(made):
    """Sound, nothing, text, a cut file without its header; and what would have the node open other files or sockets."""
    found, cluster, client = made
    refused = [clip for clip in found.values() if clip.refused]

    def check(clip):
        with pytest.raises(REFUSED):
            of = Served.of(client, cluster, clip.name)
            of.at([0])

    each(refused, check)
    assert len(refused) >= 8
    with pytest.raises(fc.NotFoundError):
        client.video(cluster.uri("none.mp4"), timeout=TIMEOUT)


def test_flipped_bits_cost_their_own_frames(made, served):
    """Frames that no damage reaches are right; others come only when asked for, and then as one thread conceals them."""
    found, cluster, _ = made
    of, reached = served("flips.mp4"), range(15, 30)
    with contextlib.suppress(fc.ChangedError, *REFUSED):
        of.at(range(of.video.num_frames), size=(8, 8))
    # What is wrong with it is seen as it is decoded, and from then on its frames are those that come out.
    of = served("flips.mp4")
    errors = 0
    for index, number in enumerate(found["flips.mp4"].numbers[: of.video.num_frames]):
        try:
            got = painted.number_of(of.rgb(index))
        except REFUSED:
            errors += 1
            assert index in reached, index
            continue
        if index < reached[0]:
            assert got == number
    assert 0 < errors <= len(reached) and of.video.damaged
    kept = of.planes(range(of.video.num_frames), damaged="keep")
    assert kept == [picture.sha256() for picture in exact.walk(cluster.folder / "flips.mp4", tolerant=True)]


def test_damage_to_a_picture_that_no_other_needs_is_its_own(made, served):
    """Whatever is asked for, alone or with others, and whether the damage was seen before: it alone is an error."""
    _, cluster, _ = made
    there = [picture.sha256() for picture in exact.walk(cluster.folder / "faststart.mp4")]
    needless = [frame for _, frame in clips.disposable(cluster.folder / "faststart.mp4")]
    assert 15 < len(needless) < 50, "some pictures are needed, and some are not"
    hit = needless[clips.HIT]
    others = [index for index in range(60) if index != hit]
    for _ in range(2):
        of = served("needless.mp4")
        assert of.planes(others) == [there[index] for index in others]
        for index in others:
            assert of.planes([index]) == [there[index]], index
        with pytest.raises((fc.ChangedError, *REFUSED)):
            of.planes([hit])
    with pytest.raises(fc.UndecodableError):
        served("needless.mp4").planes([hit - 1, hit, hit + 1])


def test_a_cut_file_gives_what_it_has(made, served):
    """A frame behind the cut is an error, never another frame."""
    _, cluster, _ = made
    there = [picture.sha256() for picture in exact.walk(cluster.folder / "cut.mp4", tolerant=True)]
    try:
        of = served("cut.mp4")
    except REFUSED:
        return  # a file that lacks part of what its header promises may be refused as a whole
    came = 0
    for index in range(of.video.num_frames):
        try:
            planes = of.planes([index])
        except (*REFUSED, IndexError):
            continue
        came += 1
        assert planes == [there[index]]
    assert 0 < came < 60


def test_a_replaced_video_is_another(made):
    """Frames are of the version that `video` found, or an error; never of both."""
    found, cluster, client = made
    path = cluster.folder / "replaced.mp4"
    path.write_bytes((cluster.folder / "plain.mp4").read_bytes())
    of = Served.of(client, cluster, path.name)
    assert of.numbers(of.at([0])) == [found["plain.mp4"].numbers[0]]
    path.unlink()
    path.write_bytes((cluster.folder / "two.mp4").read_bytes())
    with contextlib.suppress(fc.ChangedError, fc.NotFoundError):
        assert of.numbers(of.at([30])) == [found["plain.mp4"].numbers[30]]
    again = Served.of(client, cluster, path.name)
    if again.video.version != of.video.version:
        assert again.numbers(again.at([30])) == [found["two.mp4"].numbers[30]]


def test_frames_go_where_they_are_told_to(served):
    """`out=` is filled, at its address."""
    of = served("bframes.mp4")
    out = numpy.zeros((3, 96, 160, 3), "uint8")
    frames = of.at([5, 59, 0], out=out)
    assert frames.data.address == out.ctypes.data and [painted.number_of(frame) for frame in out] == [5, 59, 0]
