"""Clips are opened and read for a long time: every frame is right, and nothing grows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import clips
import painted
import pytest
from conftest import SEED, start, stop
from held import MEBIBYTE, SOAK, Held, growth, spread
from PIL import Image
from videos import counters

# As many files as loaders take turns at: links of the clips that are made, each an object of its own.
FILES = 320
SECONDS_MAX = 1500

# Beyond what was held at half time: noise of the allocators; one leaked frame in a hundred opens would be several times that.
# Caches are full long before: they are as small as they may be, and none is on disk, whose table grows until that is full.
GROWTH_MAX = {"node": 8 * MEBIBYTE, "workers": 4 * MEBIBYTE, "client": 4 * MEBIBYTE}
CACHES = {"disk": "0", "CACHE__RAW_RAM": "16MiB", "CACHE__DECODED_RAM": "16MiB", "BUCKET__FRESHNESS": "always"}

# Beyond those at half time: connections to the origin, and threads that wait for files, come and go.
HANDLES_MORE = {"files": 0, "descriptors": 4, "sockets": 16, "threads": 24, "own_descriptors": 2, "own_threads": 2}


def small(folder: Path) -> list[clips.Clip]:
    """Of each container one, and of most codecs; the same frames in all of them."""
    numbers, gop = range(40), {"gop": 10, "bframes": 2}
    found = [
        ("plain.mp4", "libx264", clips.X264),
        ("plain.mkv", "libx264", clips.X264),
        ("mpeg4.avi", "mpeg4", {}),
        ("mpeg2.ts", "mpeg2video", {}),
    ]
    for name, codec, options in found:
        painted.encode(folder / name, codec, numbers, options, bit_rate=1_000_000, **gop)
    quick = {"deadline": "realtime", "cpu-used": "8"}
    painted.encode(folder / "vp9.webm", "libvpx-vp9", numbers, quick, gop=10, bit_rate=400_000)
    painted.encode(folder / "mjpeg.avi", "mjpeg", numbers, form="yuvj422p", bit_rate=4_000_000)
    flags = "frag_keyframe+empty_moov+default_base_moof"
    painted.remux(folder / "plain.mp4", folder / "fragmented.mp4", container={"movflags": flags})
    painted.remux(folder / "plain.mp4", folder / "h264.ts")
    painted.remux(folder / "plain.mp4", folder / "raw.h264")
    return [clips.Clip(path.name, path.suffix, tuple(numbers)) for path in sorted(folder.iterdir())]


def moving(folder: Path) -> clips.Clip:
    """A GIF whose frames say their numbers."""
    frames = [painted.paint(number).to_image().quantize(64, dither=Image.Dither.NONE) for number in range(12)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    return clips.Clip("moving.gif", "gif", tuple(range(12)))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder, state = tmp_path_factory.mktemp("endure"), tmp_path_factory.mktemp("endure-state")
    made = clips.make(folder) if SOAK else small(folder)
    made = [clip for clip in made if not clip.refused and not clip.damaged] + [moving(folder)]
    files = []
    for number in range(FILES):
        clip = made[number % len(made)]
        name = f"{number:03}-{clip.name}"
        # A copy, for a link would have the same time.
        (folder / name).write_bytes((folder / clip.name).read_bytes())
        files.append({"file": name, "numbers": clip.numbers, "sizes": clip.sizes, "moving": clip.name.endswith("gif")})
    cluster = start(folder, state, **CACHES)
    print(f"seed {SEED}; corpus: {len(made)} generated")
    yield files, cluster, state
    stop(cluster)


def test_opens_and_reads_leave_nothing(served):
    """Memory of node, decoders and client does not grow over the second half; nor do descriptors, shared files and threads."""
    files, cluster, state = served
    count = int(os.environ.get("FRAMECACHE_TEST_OPENS", "50000" if SOAK else "500"))
    settings = {
        "clips": files,
        "count": count,
        "pid": cluster.process.pid,
        "seed": SEED,
        "folder": str(cluster.folder),
        "uri": cluster.uri(""),
        "memory": "64MiB",
    }
    (state / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, str(Path(__file__).parent / "endure.py"), str(state / "settings.json")]
    done = subprocess.run(command, env=cluster.environment(), capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert not said["wrong"], said["wrong"]
    moments = [(at, Held(**moment)) for at, moment in said["moments"]]
    found = counters(cluster)
    print(
        f"{count} opens, {said['frames']} frames in {said['seconds']:.0f} s; {spread(said['times'])}, worst {said['worst']:.2f} s"
    )
    print(f"{found['framecache_video_indexes_total']:.0f} indexes, {found['framecache_decode_jobs_total']:.0f} jobs of decoders")
    for at, moment in (*moments[:: max(len(moments) // 8, 1)], moments[-1]):
        print(f"{at}: {moment}")
    grown = {name: growth(moments, lambda moment, name=name: getattr(moment, name)) for name in GROWTH_MAX}
    print("growth over the second half:", ", ".join(f"{name} {grown[name] / MEBIBYTE:.2f} MiB" for name in grown))
    assert found["framecache_decode_worker_deaths_total"] == 0 and found["framecache_decode_quarantined"] == 0
    half = len(moments) // 2
    for name, more in HANDLES_MORE.items():
        before, after = (max(getattr(moment, name) for _, moment in part) for part in (moments[:half], moments[half:]))
        assert after <= before + more, f"{name}: {before}, then {after}"
    # In a small run caches still fill.
    assert not SOAK or all(grown[name] <= most for name, most in GROWTH_MAX.items()), grown
