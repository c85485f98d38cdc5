"""Profiles `swscale` and `fast` of videos: the one as FFmpeg's program of the same library has it, the other close to `exact`."""

import math
import re
import shutil
import subprocess

import clips
import exact
import framecache as fc
import numpy
import pytest
from conftest import start, stop
from test_video_depth import first
from videos import Served, copied, each

# The libswscale that profile `swscale` is of.
SWSCALE_MAJOR = 6
COMPARED_MIN = 40
# Peak signal to noise of `fast` against `exact`, in dB: of a test pattern of saturated stripes made 6 pixels wide it is 24.1, of
# all other files 29 and more.
FAST_DB_MIN = 24


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The files, the cluster that serves them, and a client."""
    folder, state = tmp_path_factory.mktemp("profiles"), tmp_path_factory.mktemp("profiles-state")
    rows = exact.corpus()
    if rows is None:
        names = [clip.name for clip in clips.make(folder) if not clip.refused and not clip.damaged]
    else:
        rows = [row for row in rows if row["expect"]["ok"] and "thread_dependent" not in row["expect"]]
        copied(rows, folder)
        names = [row["file"] for row in rows if row["kind"] != "gif-as-video"]
    cluster = start(folder, state, nodes=1)
    with cluster.client() as client:
        yield [folder / name for name in names], cluster, client
    stop(cluster)


def program() -> str:
    """FFmpeg's program, if it is of the library that the profile is of."""
    found = shutil.which("ffmpeg")
    version = subprocess.run([found, "-version"], capture_output=True, text=True).stdout if found else ""
    major = re.search(r"libswscale\s+(\d+)\.", version)
    if not major or int(major[1]) != SWSCALE_MAJOR:
        pytest.skip(f"no ffmpeg of libswscale {SWSCALE_MAJOR} here")
    return found


def test_swscale_is_ffmpegs(served):
    """Of every file: the first frame is, to the byte, what the program writes with `-pix_fmt rgb24`."""
    paths, cluster, client = served
    ffmpeg, forms = program(), set()

    def check(path):
        of, picture = Served.of(client, cluster, path.name), first(path)
        command = [ffmpeg, "-v", "error", "-noautorotate", "-threads", "1", "-flags", "bitexact", "-i", path, "-frames:v", "1"]
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
        # The frame that the program shows first need not be the file's first: edit lists and leading pictures are its own.
        written = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
        want = numpy.frombuffer(written, numpy.uint8).reshape(picture.height, picture.width, 3)
        got = of.rgb(0, profile="swscale")
        assert (got == want).all(), f"{picture.form}: {(got != want).any(-1).sum()} of {want.size // 3} pixels differ"
        forms.add(picture.form)

    each(paths, check)
    print(f"formats: {', '.join(sorted(forms))}")
    assert len(paths) >= COMPARED_MIN and {"yuv420p", "yuv420p10le"} <= forms


def decibels(ours: numpy.ndarray, theirs: numpy.ndarray) -> float:
    mean = numpy.square(ours.astype(float) - theirs).mean()
    return math.inf if mean == 0 else 10 * math.log10(255**2 / mean)


def test_fast_is_close(served):
    """Resized, with and without crop, box, mirror: near to `exact`; and at its own size, or larger, `exact` itself."""
    paths, cluster, client = served
    least: dict[str, float] = {}

    def check(path):
        of = Served.of(client, cluster, path.name)
        width, height = of.video.width, of.video.height
        for wanted in (
            {"size": (max(1, width // 2), max(1, height // 2))},
            {"size": (max(1, width // 3), max(1, height // 3)), "filter": "bicubic"},
            {"short": max(1, min(width, height) // 2), "flip": True, "layout": "chw"},
            {"box": (1, 3, width // 2, height // 2), "size": (max(1, width // 5), max(1, height // 5))},
            {"short": max(1, min(width, height) // 2), "crop": max(1, min(width, height) // 3)},
        ):
            fast, slow = of.rgb(0, profile="fast", **wanted), of.rgb(0, **wanted)
            assert fast.shape == slow.shape
            near = decibels(fast, slow)
            least[path.name] = min(near, least.get(path.name, math.inf))
            assert near >= FAST_DB_MIN, f"{wanted}: {near:.1f} dB"
        for wanted in ({}, {"size": (2 * width, 2 * height)}, {"crop": min(width, height) // 2}):
            assert (of.rgb(0, profile="fast", **wanted) == of.rgb(0, **wanted)).all(), wanted

    each(paths, check)
    for name, near in sorted(least.items(), key=lambda item: item[1])[:8]:
        print(f"{name}: {near:.1f} dB at least")
    assert len(paths) >= COMPARED_MIN


def test_profiles_have_keys_of_their_own(served):
    """What one profile made is never given for another."""
    paths, cluster, client = served
    of = Served.of(client, cluster, next(path.name for path in paths if first(path).form == "yuv420p"))
    wanted = {"size": (of.video.width // 3, of.video.height // 3)}
    once = {profile: of.rgb(0, profile=profile, **wanted) for profile in ("fast", "swscale", "exact")}
    for profile in ("exact", "swscale", "fast"):
        assert (of.rgb(0, profile=profile, **wanted) == once[profile]).all()
    assert not (once["fast"] == once["exact"]).all() and not (once["swscale"] == once["exact"]).all()


def test_pictures_have_no_swscale(cluster, client):
    """The profile is of videos alone."""
    with pytest.raises(fc.FramecacheError, match="swscale"):
        client.images([cluster.uri("mix/0.jpg")], "image?profile=swscale")
