"""Clips that are meant to harm: each costs whoever asks for it an answer in time, and nobody else anything."""

import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clips
import framecache as fc
import hostile
import numpy
import painted
import pytest
from conftest import SEED, jpeg, picture, start, stop
from held import SOAK, at_rest, children, deaths, spread
from videos import REFUSED, TIMEOUT, Served, counters, each, origin_bytes

SLACK_SECONDS = 2.0
EIGHT_K = (7680, 4320)
NOT_HAD = (*REFUSED, fc.ChangedError, IndexError)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node of two decoders over a folder with a good clip and a picture."""
    folder, state = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("hostile-state")
    print(f"seed {SEED}")
    painted.encode(folder / "good.mp4", "libx264", range(48), clips.X264, gop=12, bframes=2)
    painted.encode(folder / "plain.mp4", "libx264", range(24), clips.X264 | {"x264-params": "bframes=0:scenecut=0"}, gop=12)
    (folder / "good.jpg").write_bytes(jpeg(picture(320, 240, SEED)))
    cluster = start(folder, state, memory="4GiB", DECODE__WORKERS="2", CACHE__RAW_RAM="64MiB", CACHE__DECODED_RAM="64MiB")
    with cluster.client() as client:
        yield cluster, client
    stop(cluster)


def put(cluster, name: str, data: bytes) -> str:
    (Path(cluster.folder) / name).write_bytes(data)
    return name


def tried(client, cluster, name: str, seconds: float = TIMEOUT) -> str:
    """Opens it and reads some frames; what came of it, in time."""
    begun = time.monotonic()
    try:
        video = client.video(cluster.uri(name), timeout=seconds)
        count = video.num_frames or 1
        frames = video.get_frames_at(sorted({0, count // 2, count - 1}), timeout=seconds, size=(32, 20))
        return f"{len(frames)} of {count} frames"
    except (fc.TimeoutError, *NOT_HAD) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        took = time.monotonic() - begun
        assert took <= 2 * (seconds + SLACK_SECONDS), f"{name}: {took:.1f} s"


class Beside:
    """Somebody who reads good clips and pictures meanwhile: that each is right, and how long it took."""

    def __init__(self, client, cluster, reads: int = 2) -> None:
        self.client, self.cluster, self.reads = client, cluster, reads
        self.over, self.times = threading.Event(), []
        self.pool = ThreadPoolExecutor(reads)

    def __enter__(self):
        self.tasks = [self.pool.submit(self.read, number) for number in range(self.reads)]
        return self

    def __exit__(self, *_):
        self.over.set()
        for task in self.tasks:
            task.result()
        self.pool.shutdown()

    def read(self, number: int) -> None:
        dice, folder = random.Random(SEED + number), Path(self.cluster.folder)
        good, still = (folder / "good.mp4").read_bytes(), (folder / "good.jpg").read_bytes()
        while not self.over.is_set():
            name = f"beside-{number}-{len(self.times)}"
            (folder / f"{name}.mp4").write_bytes(good)
            (folder / f"{name}.jpg").write_bytes(still)
            begun = time.monotonic()
            index = dice.randrange(48)
            frame = self.client.video(self.cluster.uri(f"{name}.mp4"), timeout=TIMEOUT).get_frames_at([index], timeout=TIMEOUT)
            assert painted.number_of(numpy.asarray(frame[0])) == index
            self.client.images([self.cluster.uri(f"{name}.jpg")], fc.Image(short=64))
            self.times.append(time.monotonic() - begun)


def test_headers_that_lie_are_seen_through(node):
    """Of 2^31 samples, of none, at one time, backwards, beyond the file: what is there, or an error by type; no decoder is lost
    to a lie that costs nothing to see."""
    cluster, client = node
    plain = (Path(cluster.folder) / "plain.mp4").read_bytes()
    with Beside(client, cluster):
        time.sleep(1)  # both decoders run, and every connection is there
    before, lost = at_rest(cluster), deaths(cluster)
    lies = [(f"lie-{name}.mp4", data) for name, data in hostile.lying(plain)]

    def check(lie) -> None:
        name, data = lie
        was = deaths(cluster)
        said = tried(client, cluster, put(cluster, name, data))
        print(f"{name}: {said}; {deaths(cluster) - was} decoders")
        assert deaths(cluster) - was <= 2

    with Beside(client, cluster) as beside:
        each(lies, check, lambda lie: lie[0])
    after = at_rest(cluster)
    print(f"beside: {spread(beside.times)}; {deaths(cluster) - lost} decoders ended\n{before}\n{after}")
    assert deaths(cluster) - lost <= 2
    assert (after.descriptors, after.own_descriptors) == (before.descriptors, before.own_descriptors) and after.files <= 2


def test_nothing_else_is_opened(node):
    """Playlists, references, reference movies: they are refused, or are what they hold themselves; nobody is called."""
    cluster, client = node
    plain = (Path(cluster.folder) / "plain.mp4").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        other = f"http://127.0.0.1:{listener.getsockname()[1]}/other.mp4"

        def check(named) -> None:
            name, data = named
            said = tried(client, cluster, put(cluster, name, data))
            print(f"{name}: {said}")
            assert "of 24 frames" in said or "Error" in said

        each(((f"{name}.mp4", data) for name, data in hostile.references(plain, other)), check, lambda named: named[0])
        with pytest.raises(TimeoutError):
            listener.accept()


def test_frames_of_another_shape_cost_their_own(node):
    """A stream that changes size and format: each frame at its own size, and one that is too much refused alone."""
    cluster, client = node
    name = hostile.changing(Path(cluster.folder)).name
    of = Served.of(client, cluster, name)
    assert of.video.num_frames == 40
    shapes = [of.rgb(index).shape for index in range(40)]
    assert shapes == [(96, 160, 3)] * 10 + [(64, 96, 3)] * 10 + [(96, 160, 3)] * 10 + [(192, 320, 3)] * 10
    assert of.numbers(of.at(range(40), size=(160, 96))) == [*range(10)] * 4
    for size in ((hostile.HUGE, hostile.HUGE), (16_368, 32)):
        said = tried(client, cluster, put(cluster, f"sized-{size[1]}.h264", hostile.sized(*size)))
        print(f"{size}: {said}")
        assert "Error" in said
    assert deaths(cluster) <= 8


def test_a_damaged_frame_costs_the_others_of_its_call_nothing(node):
    """Frames that were asked for together with one that cannot be had are made, and held: whoever asks again finds them."""
    cluster, client = node
    folder = Path(cluster.folder)
    whole = clips.remux(folder / "good.mp4", folder / "damaged.mp4", container={"movflags": "faststart"})
    spans = clips.payloads(whole)
    # From the third packet of the second group of pictures to its end.
    put(cluster, "damaged.mp4", clips.flipped(whole.read_bytes(), spans[14][0], spans[23][1], 60))
    of = Served.of(client, cluster, "damaged.mp4")
    with pytest.raises(NOT_HAD):
        of.at([0, 23, 36], size=(64, 40))
    again = Served.of(client, cluster, "damaged.mp4")
    assert again.video.damaged, "it was seen as it was decoded"
    bad = next(index for index in range(12, 24) if not can(again, index))
    with pytest.raises(REFUSED):
        again.at([0, bad, 36], size=(50, 30))
    before = counters(cluster)["framecache_units_total"]
    assert again.at([0, 36], size=(50, 30)).indices == [0, 36]
    assert counters(cluster)["framecache_units_total"] == before
    # That it cannot be had is known: it is not indexed anew for each who asks.
    indexes = counters(cluster)["framecache_video_indexes_total"]
    for _ in range(5):
        assert not can(again, bad)
    assert counters(cluster)["framecache_video_indexes_total"] == indexes


def can(of: Served, index: int) -> bool:
    try:
        of.at([index], size=(32, 20))
    except REFUSED:
        return False
    return True


def test_many_who_ask_for_what_is_none_cost_one_look(node):
    """A clip that cannot be read is read once, by however many it is asked for, together and later."""
    cluster, client = node
    data = (Path(cluster.folder) / "plain.mp4").read_bytes()
    name = put(cluster, "headless.mp4", data[: data.index(b"moov") - 4])
    before, read = counters(cluster)["framecache_video_indexes_total"], origin_bytes(cluster)
    with ThreadPoolExecutor(32) as pool:
        said = list(pool.map(lambda _: tried(client, cluster, name), range(64)))
    said += [tried(client, cluster, name) for _ in range(5)]
    assert all(answer.startswith("U") and "Error" in answer for answer in said), said
    assert counters(cluster)["framecache_video_indexes_total"] == before + 1
    assert origin_bytes(cluster) - read <= 1.3 * len(data)


def test_small_frames_of_8k_are_given_or_refused_in_time(node):
    """Clips that are as large decoded as they are small: as many frames as fit the time, and others are served meanwhile."""
    cluster, client = node
    folder, count = Path(cluster.folder), 400 if SOAK else 40
    data, _ = hostile.one("libx264", EIGHT_K, options={"preset": "ultrafast", "x264-params": "keyint=1"})
    (folder / "8k.h264").write_bytes(data * count)
    hostile.repeated(folder / "8k.ts", data, "libx264", EIGHT_K, count)
    with Beside(client, cluster) as beside, ThreadPoolExecutor(8) as pool:
        # Without times, all of it is decoded to know it; with times, frames alone are.
        raw = [pool.submit(tried, client, cluster, "8k.h264", 5.0) for _ in range(4)]
        timed = [pool.submit(tried, client, cluster, "8k.ts", 30.0) for _ in range(2)]
        impatient = [pool.submit(gone, client, cluster, "8k.ts", random.Random(number)) for number in range(2)]
        said = [task.result() for task in (*raw, *timed)]
        for task in impatient:
            task.result()
    print(f"8k: {len(data)} bytes a frame, {said}; beside: {spread(beside.times)}")
    assert all("frames" in answer or "Timeout" in answer or "Undecodable" in answer for answer in said)
    assert any("frames" in answer for answer in said[4:])
    assert max(beside.times) < 20
    at_rest(cluster)


def gone(client, cluster, name: str, dice: random.Random) -> None:
    """Somebody who leaves amid what was asked for, again and again."""
    for _ in range(20):
        seconds = dice.uniform(0.005, 0.1)
        begun = time.monotonic()
        try:
            video = client.video(cluster.uri(name), timeout=seconds)
            video.get_frames_at([dice.randrange(video.num_frames)], timeout=seconds, short=dice.randrange(20, 99))
        except (fc.TimeoutError, fc.BusyError, *NOT_HAD):
            pass
        assert time.monotonic() - begun <= 2 * seconds + SLACK_SECONDS


def test_one_unit_of_all_frames(node):
    """A clip that can be begun at its first frame alone: near ones are quick, far ones come in time or are refused for good."""
    cluster, client = node
    count = 100_000 if SOAK else 3_000
    hostile.endless(Path(cluster.folder) / "endless.mp4", count)
    of, lost = Served.of(client, cluster, "endless.mp4"), deaths(cluster)
    assert of.video.num_frames == count and of.video.keyframes == [0]
    with Beside(client, cluster) as beside:
        for index in (0, 7, 100, count // 2, count - 1, count - 2):
            begun = time.monotonic()
            try:
                number = painted.number_of(of.rgb(index))
                assert number == index % 256, index
            except REFUSED as error:
                assert SOAK and index >= count // 2, f"{index}: {error}"
            print(f"frame {index}: {time.monotonic() - begun:.2f} s")
    print(f"beside: {spread(beside.times)}; {deaths(cluster) - lost} decoders ended")
    assert painted.number_of(of.rgb(9)) == 9
    assert deaths(cluster) - lost <= 6 and max(beside.times) < 20


def test_a_unit_for_each_of_many_frames(node):
    """A hundred thousand units of one packet each: any of them, the last ones, and evenly."""
    cluster, client = node
    count = 100_000 if SOAK else 5_000
    data, _ = hostile.one("mjpeg", (32, 32), "yuvj420p")
    for name in ("units.avi", "units.mkv", "units.mp4"):
        hostile.repeated(Path(cluster.folder) / name, data, "mjpeg", (32, 32), count)
        begun = time.monotonic()
        of = Served.of(client, cluster, name)
        opened = time.monotonic() - begun
        assert of.video.num_frames == count and len(of.at([0, count - 1, count // 3])) == 3
        assert len(of.video.get_frames_uniform(256, timeout=TIMEOUT)) == 256
        print(f"{name}: opened in {opened:.2f} s, 259 frames in {time.monotonic() - begun - opened:.2f} s")


def test_a_clip_that_would_be_read_many_times_is_refused(node):
    """What lies so far apart that reading it through is reading it again and again is refused by type, and costs no decoder."""
    cluster, client = node
    name, lost = hostile.scattered(Path(cluster.folder) / "scattered.mp4").name, deaths(cluster)
    said = tried(client, cluster, name)
    print(said)
    assert "Error" in said and deaths(cluster) == lost


@pytest.mark.soak
def test_more_packets_than_an_index_holds(node):
    """Beyond its bound a clip is refused by type, and costs no decoder."""
    cluster, client = node
    data, _ = hostile.one("mjpeg", (16, 16), "yuvj420p")
    hostile.repeated(Path(cluster.folder) / "many.mkv", data, "mjpeg", (16, 16), (1 << 20) + 1)
    lost = deaths(cluster)
    said = tried(client, cluster, "many.mkv")
    print(said)
    assert "Error" in said and deaths(cluster) == lost


def test_decoders_that_are_killed_amid_a_unit_cost_no_frame(node):
    """Killed from outside, at any moment: each frame is right in the end, and no clip is blamed."""
    cluster, client = node
    folder, over, killed = Path(cluster.folder), threading.Event(), [0]
    judged = counters(cluster)["framecache_decode_quarantined"]
    dice = random.Random(SEED)

    def kill() -> None:
        while not over.wait(dice.uniform(0.1, 0.3)):
            workers = children(cluster.process.pid)
            if workers:
                os.kill(dice.choice(workers), signal.SIGKILL)
                killed[0] += 1

    def read(number: int) -> None:
        dice = random.Random(SEED + number)
        data = (folder / "good.mp4").read_bytes()
        for turn in range(200 if SOAK else 25):
            name = put(cluster, f"killed-{number}-{turn}.mp4", data)
            of = Served.of(client, cluster, name)
            indices = dice.sample(range(48), 3)
            assert of.numbers(of.at(indices, size=(900, 540))) == indices

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(4)))
    finally:
        over.set()
        killer.join()
    print(f"{killed[0]} kills")
    assert killed[0] >= 3 and counters(cluster)["framecache_decode_quarantined"] == judged


def test_a_small_budget_refuses_what_is_large_and_serves_the_rest(tmp_path_factory):
    """Where memory is short, frames that need much are too large, or wait; small ones are served."""
    folder, state = tmp_path_factory.mktemp("short"), tmp_path_factory.mktemp("short-state")
    painted.encode(folder / "good.mp4", "libx264", range(48), clips.X264, gop=12, bframes=2)
    (folder / "good.jpg").write_bytes(jpeg(picture(320, 240, SEED)))
    data, _ = hostile.one("libx264", EIGHT_K, options={"preset": "ultrafast", "x264-params": "keyint=1"})
    hostile.repeated(folder / "8k.ts", data, "libx264", EIGHT_K, 30)
    small = {"memory": "600MiB", "disk": "0", "CACHE__RAW_RAM": "16MiB", "CACHE__DECODED_RAM": "16MiB", "DECODE__WORKERS": "2"}
    cluster = start(folder, state, **small)
    try:
        with cluster.client() as client, Beside(client, cluster) as beside, ThreadPoolExecutor(8) as pool:
            said = list(pool.map(lambda _: tried(client, cluster, "8k.ts", 20.0), range(16)))
        print(f"{set(said)}; beside: {spread(beside.times)}")
        assert all("TooLargeError" in answer or "frames" in answer for answer in said)
        assert len(beside.times) > 3 and cluster.process.poll() is None
    finally:
        stop(cluster)
