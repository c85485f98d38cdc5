"""Real videos: counts, times, planes and RGB, through a running node, as an independent reader and the exact rule have them."""

import collections
import hashlib
from pathlib import Path

import clips
import exact
import numpy
import pytest
from conftest import start, stop
from videos import REFUSED, Served, copied, each, plausible

# Of those that decode: samples are at the first, the second, the middle and the last two frames.
SAMPLES_MIN = 240
GENERATED_MIN = 50
SECONDS_APART_MAX = 1e-6


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The rows, the cluster that serves their files, and a client."""
    folder, state = tmp_path_factory.mktemp("videos"), tmp_path_factory.mktemp("videos-state")
    rows = exact.corpus()
    if rows is None:
        rows = generated(folder)
    else:
        copied(rows, folder)
    cluster = start(folder, state, nodes=2)
    with cluster.client() as client:
        yield rows, cluster, client
    stop(cluster)


def generated(folder: Path) -> list[dict]:
    """Clips made on the spot, and what PyAV says of them, in the manifest's words."""
    rows = []
    for clip in clips.make(folder):
        if clip.damaged:
            continue  # test_videos.py has them
        row = {"file": clip.name, "path": folder / clip.name, "kind": clip.kind, "expect": {"ok": not clip.refused}}
        if not clip.refused:
            found = list(exact.walk(row["path"]))
            count = len(found)
            row["expect"] |= {
                "frames": count,
                "rotation": clip.rotation,
                "container": "" if clip.timed else "untimed",
                "pts_missing": sum(picture.pts is None for picture in found),
                "codec": "",
                "frame_sizes": collections.Counter(f"{picture.width}x{picture.height}" for picture in found),
                "samples": [
                    {"index": index, "pts_seconds": found[index].pts_seconds, "yuv_sha256": found[index].sha256()}
                    for index in sorted({0, 1, count // 2, count - 2, count - 1})
                ],
            }
        rows.append(row)
    print(f"corpus: {len(rows)} generated")
    assert len(rows) >= GENERATED_MIN
    return rows


def timed(expect: dict) -> bool:
    """Whether the file says when each frame is shown. AVI says only when it is decoded; what is made of that differs."""
    stored = not expect["pts_missing"] and expect.get("container") != "untimed"
    return stored and (expect.get("container") != "avi" or expect["codec"] == "mjpeg")


def moving(row: dict) -> bool:
    """An animation is served as Pillow composes it, and has no planes."""
    return row["kind"] == "gif-as-video"


def test_every_sample_is_right(served):
    """Number of frames, times, planes, RGB to the last pixel, and no frame of any file a neighbour's."""
    rows, cluster, client = served
    table = collections.defaultdict(collections.Counter)

    def check(row: dict) -> None:
        expect, kind = row["expect"], table[row["kind"]]
        kind["files"] += 1
        of = Served.of(client, cluster, row["file"])
        counted = of.video.num_frames
        assert counted == expect["frames"] or (moving(row) and counted is None), f"{counted} frames, not {expect['frames']}"
        assert (of.video.rotation or 0) % 360 == (expect["rotation"] or 0) % 360
        if "thread_dependent" in expect:
            kind["damaged"] += 1
            whole(of, expect["thread_dependent"])
            # Seen as it was decoded.
            assert Served.of(client, cluster, row["file"]).video.damaged
            return
        samples = {sample["index"]: sample for sample in expect["samples"]}
        seconds = []
        # Frames of two sizes cannot stand in one array, and are asked for one by one.
        groups = [list(samples)] if len(expect["frame_sizes"]) == 1 else [[index] for index in samples]
        rgb, planes = {}, {}
        for group in groups:
            frames = of.at(group)
            assert frames.indices == group
            rgb |= dict(zip(group, map(numpy.asarray, frames), strict=True))
            if not moving(row):
                planes |= dict(zip(group, of.planes(group), strict=True))
        for index, (frame, base) in enumerate(exact.frames(row["path"])):
            seconds.append(None if frame.pts is None else float(frame.pts * (frame.time_base or base)))
            if index not in samples:
                continue
            picture = exact.picture(frame, base)
            assert picture.sha256() == samples[index]["yuv_sha256"], "the independent reader does not agree with the manifest"
            assert moving(row) or planes[index] == picture.sha256(), f"planes of frame {index}"
            wrong = (rgb[index] != picture.rgb()).any(-1)
            assert not wrong.any(), f"frame {index}: {wrong.sum()} of {wrong.size} pixels"
            theirs = frame.to_ndarray(format="rgb24")
            assert plausible(picture, theirs, frame.interlaced_frame), f"frame {index} is far from swscale's"
            kind["frames"] += 1
        assert len(seconds) == expect["frames"]
        if timed(expect) and not moving(row):
            times_hold(of, seconds, expect)
            kind["timed"] += 1

    try:
        each((row for row in rows if row["expect"]["ok"]), check, lambda row: row["file"])
    finally:
        print(f"\n{'kind':42} files frames timed")
        for kind, counts in sorted(table.items()):
            print(f"{kind:42} {counts['files']:5} {counts['frames']:6} {counts['timed']:5}")
    compared = sum(counts["frames"] for counts in table.values())
    print(f"{compared} frames compared, planes and RGB")
    assert compared >= min(SAMPLES_MIN, 5 * GENERATED_MIN)


def times_hold(of: Served, seconds: list[float], expect: dict) -> None:
    """Each frame's own time is the file's, and leads back to it."""
    told = of.at(range(len(seconds)), size=(8, 8))
    assert told.pts_seconds == pytest.approx(seconds, abs=SECONDS_APART_MAX)
    assert of.video.begin_stream_seconds == pytest.approx(seconds[0], abs=SECONDS_APART_MAX)
    indices = sorted(sample["index"] for sample in expect["samples"])
    asked = [told.pts_seconds[index] for index in indices]
    assert of.video.get_frames_played_at(asked, size=(8, 8), timeout=60).indices == indices


def whole(of: Served, one_thread: dict) -> None:
    """A damaged stream, all of it: what one thread makes of it. Without being asked to, nothing damaged is served."""
    frames = of.at(range(one_thread["threads1_frames"]), layout="planes", damaged="keep")
    every = hashlib.sha256()
    for frame in frames:
        every.update(memoryview(frame).cast("B"))
    assert every.hexdigest() == one_thread["threads1_yuv_all_sha256"]
    with pytest.raises(REFUSED):
        of.at(range(one_thread["threads1_frames"]))


def test_what_cannot_be_read_is_an_error(served):
    """At once, or at the frames that are broken; a frame that comes all the same is the right one."""
    rows, cluster, client = served
    bad = [row for row in rows if not row["expect"]["ok"]]

    def check(row: dict) -> None:
        tolerant = row["expect"].get("tolerant", {})
        try:
            of = Served.of(client, cluster, row["file"])
        except REFUSED:
            return
        count = of.video.num_frames
        with pytest.raises((*REFUSED, IndexError)):
            of.at(range(count or 1))
        for sample in tolerant.get("samples", []):
            try:
                planes = of.planes([sample["index"]])
            except (*REFUSED, IndexError):
                continue
            assert planes == [sample["yuv_sha256"]], f"frame {sample['index']} is another"

    each(bad, check, lambda row: row["file"])
    print(f"{len(bad)} files refused")
    assert len(bad) >= 6


def test_a_change_of_size_is_served_by_size(served):
    """Frames of two sizes in one request are an error, unless a size is given; one by one they are served as they are."""
    rows, cluster, client = served
    rows = [row for row in rows if row["expect"]["ok"] and len(row["expect"]["frame_sizes"]) == 2]

    def check(row: dict) -> None:
        of = Served.of(client, cluster, row["file"])
        last = row["expect"]["frames"] - 1
        first, other = of.rgb(0), of.rgb(last)
        assert first.shape != other.shape
        assert {f"{shape[1]}x{shape[0]}" for shape in (first.shape, other.shape)} == set(row["expect"]["frame_sizes"])
        with pytest.raises(ValueError):
            numpy.asarray(of.at([0, last]).data)
        assert numpy.asarray(of.at([0, last], size=(40, 24)).data).shape == (2, 24, 40, 3)

    each(rows, check, lambda row: row["file"])
