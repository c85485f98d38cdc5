"""Damaged clips before a node as it is deployed: each is answered, and nothing is left of them."""

import collections
import itertools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clips
import framecache as fc
import mutation
import numpy
import painted
import pytest
from conftest import SEED, start, stop
from held import MEBIBYTE, SOAK, at_rest, held, spread
from test_video_endurance import small
from videos import REFUSED, TIMEOUT, counters

COUNT = int(os.environ.get("FRAMECACHE_TEST_MUTANTS", "2000" if SOAK else "100"))
ASKERS = 6

# Good clips that are read first.
WARM = 200

# How much later than its deadline a call may return: what two busy cores need to wake one of as many threads.
SLACK_SECONDS = 2.0
SECONDS = [0.2, 2.0, 30.0]

# Two decoders, a gibibyte, and small caches: nearly full before the first damaged clip comes.
SETTINGS = {
    "memory": "1GiB",
    "disk": "0",
    "CACHE__RAW_RAM": "16MiB",
    "CACHE__DECODED_RAM": "16MiB",
    "DECODE__WORKERS": "2",
    "BUCKET__FRESHNESS": "always",
}
LIMIT_BYTES = 1 << 30
WORKERS = 2

# What a decoder keeps between jobs: 64 MiB of its allocator's, at most, and 16 MiB of shared memory.
GROWTH_MAX = {"node": 24 * MEBIBYTE, "workers": WORKERS * 64 * MEBIBYTE, "shared": WORKERS * 16 * MEBIBYTE}

# Of a hundred clips, decoders that may end by them: FFmpeg's own defects, and clips that are as long to decode as they are small.
DEATHS_PERCENT_MAX = 4

# A good clip waits for decoders that damaged ones keep busy, at most this long.
GOOD_SECONDS_MAX = 20


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Clips that are good, by name, and a node that serves the folder where they are put."""
    made, folder, state = (tmp_path_factory.mktemp(name) for name in ("originals", "mutants", "mutants-state"))
    found = clips.make(made) if SOAK else small(made)
    good = {clip: (made / clip.name).read_bytes() for clip in found if not clip.refused and not clip.damaged}
    cluster = start(folder, state, **SETTINGS)
    with cluster.client() as client:
        yield good, cluster, client
    stop(cluster)


def timed(what, seconds: float):
    """The answer, or what it was refused with; and that it came in time."""
    begun = time.monotonic()
    try:
        return what(), None
    except (fc.FramecacheError, IndexError, ValueError) as error:
        return None, error
    finally:
        took = time.monotonic() - begun
        assert took <= seconds + SLACK_SECONDS, f"{took:.1f} s of {seconds}"


def ask(client: fc.Client, uri: str, dice: random.Random) -> str:
    """Opens a clip and reads of it; what came of it."""
    seconds = dice.choice(SECONDS)
    video, error = timed(lambda: client.video(uri, timeout=seconds), seconds)
    if error is None:
        count = video.num_frames or 1
        indices = sorted({0, count - 1, dice.randrange(count)})
        wanted = dice.choice(
            [{"size": (16, 16)}, {"size": (16, 16)}, {"size": (16, 16), "damaged": "keep"}, {"layout": "planes"}]
        )
        indices = indices[-1:] if "layout" in wanted else indices
        frames, error = timed(lambda: video.get_frames_at(indices, timeout=seconds, **wanted), seconds)
    if error is None:
        assert frames.indices == indices and len(frames) == len(indices)
        assert all(numpy.asarray(frame).size for frame in frames)
        return "drawn"
    if isinstance(error, (fc.TimeoutError, fc.BusyError)):
        return "late" if seconds == SECONDS[-1] else "cut short"
    assert isinstance(error, (*REFUSED, fc.ChangedError, IndexError)), f"{type(error).__name__}: {error}"
    return "refused"


def test_mutants_leave_no_trace(served):
    """The node lives, answers each in time and by type, loses few decoders, and holds afterwards what it held before; good clips
    are read exactly meanwhile."""
    good, cluster, client = served
    originals, names = list(good.items()), itertools.count()
    folder, own, over, waits, most = Path(cluster.folder), threading.local(), threading.Event(), [], [0]

    def put(data: bytes, name: str) -> str:
        # Few names, each replaced again and again: what is known of many objects is not what is looked for.
        if not hasattr(own, "number"):
            own.number = next(names)
        name = f"{own.number}-{name}"
        (folder / name).write_bytes(data)
        return name

    def whole(dice: random.Random) -> None:
        clip, data = dice.choice(originals)
        name = put(data, clip.name)
        begun = time.monotonic()
        video = client.video(cluster.uri(name), timeout=TIMEOUT)
        index = dice.randrange(len(clip.numbers))
        frame = video.get_frames_at([index], timeout=TIMEOUT, size=painted.SIZE)
        waits.append(time.monotonic() - begun)
        assert video.num_frames == len(clip.numbers)
        assert painted.number_of(numpy.asarray(frame[0])) == clip.numbers[index], (name, index)
        (folder / name).unlink()

    def reading() -> None:
        dice = random.Random(SEED)
        while not over.is_set():
            whole(dice)

    def watching() -> None:
        while not over.wait(0.1):
            moment = held(cluster.process.pid)
            most[0] = max(most[0], moment.node + moment.workers + moment.shared)
            assert most[0] < LIMIT_BYTES, moment

    def one(number: int) -> str:
        dice = random.Random(SEED + number)
        clip, data = originals[number % len(originals)]
        name = put(mutation.mutant(data, SEED + number), clip.name)
        try:
            return ask(client, cluster.uri(name), dice)
        except AssertionError as error:
            raise AssertionError(f"mutant {number} of {clip.name}, seed {SEED + number}: {error}") from error
        finally:
            (folder / name).unlink()

    with ThreadPoolExecutor(ASKERS + 2) as pool:
        list(pool.map(whole, (random.Random(SEED + number) for number in range(WARM))))
        before, begun = at_rest(cluster), time.monotonic()
        beside = [pool.submit(reading), pool.submit(watching)]
        try:
            came = collections.Counter(pool.map(one, range(COUNT)))
        finally:
            over.set()
        for task in beside:
            task.result()
    seconds, after, found = time.monotonic() - begun, at_rest(cluster), counters(cluster)
    ended = int(found["framecache_decode_worker_deaths_total"])
    print(f"seed {SEED}: {COUNT} mutants of {len(originals)} clips in {seconds:.0f} s: {dict(came)}; {ended} decoders ended")
    print(f"{len(waits)} good clips meanwhile: {spread(waits)}; {most[0] / MEBIBYTE:.0f} MiB at most")
    print(f"before {before}\nafter  {after}")
    assert cluster.process.poll() is None
    assert came["late"] <= ended and ended <= max(COUNT * DEATHS_PERCENT_MAX // 100, 2)
    assert came["drawn"] > COUNT / 10 and came["refused"] > COUNT / 10, "the damage is neither nothing nor all"
    assert max(waits) < GOOD_SECONDS_MAX
    for name, more in GROWTH_MAX.items():
        assert getattr(after, name) <= getattr(before, name) + more, name
    assert after.files <= WORKERS and after.descriptors <= before.descriptors + WORKERS
