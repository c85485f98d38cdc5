"""A loader that opens clips and reads some frames of each, for as long as it is told: that every frame is the one it asked for,
and what it and the node hold meanwhile. A process of its own, so that what it holds is the client's.

usage: endure.py SETTINGS     a file of JSON; prints one line of JSON
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import framecache as fc
import numpy
import painted
from held import held

# Of each call.
TIMEOUT = 60
LOADERS = 8
MOMENTS = 60

# Of a hundred opens, those of a file that was replaced: nothing that is known of the old one is of use.
FRESH_PERCENT = 10

# Of which a frame's number can still be read.
SIZES = [(80, 48), (64, 48), (100, 60), (96, 64), (128, 72), (90, 54), (112, 64), (72, 48)]


def once(client: fc.Client, uri: str, path: Path, clip: dict, dice: random.Random) -> int:
    """Opens a clip and reads some frames in one of the ways there are; how many."""
    if dice.randrange(100) < FRESH_PERCENT:
        os.utime(path)
    video = client.video(uri, timeout=TIMEOUT)
    numbers, count = clip["numbers"], video.num_frames
    assert count == len(numbers) or (count is None and clip["moving"]), f"{count} frames"
    way = "index" if clip["moving"] else dice.choice(["index", "index", "planes", "time", "range", "uniform"])
    if clip["sizes"] > 1:
        way = "index"
    sized = clip["sizes"] > 1 or dice.randrange(4) > 0
    wanted = {"timeout": TIMEOUT} | ({"size": dice.choice(SIZES)} if sized and way != "planes" else {})
    indices = [dice.randrange(len(numbers)) for _ in range(dice.choice([1, 1, 1, 2, 4]))]
    if way in ("index", "planes"):
        frames = video.get_frames_at(indices, **wanted, **({"layout": "planes"} if way == "planes" else {}))
        assert frames.indices == indices
    elif way == "uniform":
        frames = video.get_frames_uniform(dice.randrange(1, 6), **wanted)
    else:
        begin, end = video.begin_stream_seconds, video.end_stream_seconds
        at = sorted(begin + (end - begin) * (index + 0.5) / len(numbers) for index in indices)
        if way == "time":
            frames = video.get_frames_played_at(at, **wanted)
        else:
            frames = video.get_frames_played_in_range(at[0], min(at[0] + 0.2, end), **wanted)
    for index, frame in zip(frames.indices, frames, strict=True):
        array = numpy.asarray(frame)
        if way == "planes":
            array = luma(array, video)
        if array is not None:
            number = painted.number_of(array, 8)
            assert number == numbers[index], f"frame {index} says {number}, not {numbers[index]} ({way})"
    return len(frames)


def luma(planes: numpy.ndarray, video: fc.Video) -> numpy.ndarray | None:
    """The first plane, where a byte is a sample."""
    if "10" in video.pix_fmt or "12" in video.pix_fmt:
        return None
    return planes.reshape(-1)[: video.width * video.height].reshape(video.height, video.width)


def main() -> int:
    settings = json.loads(Path(sys.argv[1]).read_text())
    clips, total, pid = settings["clips"], settings["count"], settings["pid"]
    counter, lock = itertools.count(), threading.Lock()
    # Made at once: what this program notes is not to look like what the client holds.
    moments, wrong, times, frames = [], [], numpy.zeros(total), [0]

    def look(done: int) -> None:
        moments.append((done, dataclasses.asdict(held(pid))))

    def load(number: int) -> None:
        dice = random.Random(settings["seed"] + number)
        # Each loader has files of its own: nobody else replaces them.
        own = clips[number::LOADERS]
        while not wrong:
            done = next(counter)
            if done >= total:
                return
            clip = dice.choice(own)
            begun = time.monotonic()
            try:
                read = once(client, settings["uri"] + clip["file"], Path(settings["folder"]) / clip["file"], clip, dice)
            except Exception as error:  # told below
                wrong.append(f"{clip['file']}: {type(error).__name__}: {error}")
                return
            with lock:
                times[done] = time.monotonic() - begun
                frames[0] += read
                if done % max(total // MOMENTS, 1) == 0:
                    look(done)

    with fc.Client("env", memory=settings["memory"]) as client:
        loaders = [threading.Thread(target=load, args=(number,)) for number in range(LOADERS)]
        begun = time.monotonic()
        for loader in loaders:
            loader.start()
        for loader in loaders:
            loader.join()
        look(total)
    said = {"wrong": wrong, "moments": moments, "times": sorted(times.tolist())[:: max(total // 1000, 1)]}
    print(json.dumps(said | {"frames": frames[0], "seconds": time.monotonic() - begun, "worst": float(times.max())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
