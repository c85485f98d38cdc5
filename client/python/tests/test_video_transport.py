"""Frames that travel as planes of 4:2:0 and become RGB in the client: the same bytes as those that a node makes."""

import clips
import exact
import framecache as fc
import numpy
import pytest
from conftest import start, stop
from test_video_depth import first
from videos import Served, copied, counters, each

COVERED_MIN = 20


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The files, the cluster that serves them, and a client."""
    folder, state = tmp_path_factory.mktemp("transport"), tmp_path_factory.mktemp("transport-state")
    rows = exact.corpus()
    if rows is None:
        names = [clip.name for clip in clips.make(folder) if not clip.refused and not clip.damaged]
    else:
        rows = [row for row in rows if row["expect"]["ok"] and "thread_dependent" not in row["expect"]]
        copied(rows, folder)
        names = [row["file"] for row in rows]
    cluster = start(folder, state, nodes=1)
    with cluster.client() as client:
        yield [folder / name for name in names], cluster, client
    stop(cluster)


def test_pixels_are_the_nodes(served):
    """Of every file, whatever its format: the same RGB, to the byte. Of 4:2:0 in 8 bits, no RGB was made for it by any node."""
    paths, cluster, client = served
    covered = []

    def check(path):
        of = Served.of(client, cluster, path.name)
        count = of.video.num_frames or 1
        indices = sorted({0, count // 2, count - 1})
        before = sent(cluster)
        frames = [of.at([index], transport="yuv420")[0] for index in indices]
        bytes_sent = sent(cluster) - before
        rgb = [of.rgb(index) for index in indices]
        for index, frame, want in zip(indices, frames, rgb, strict=True):
            assert (numpy.asarray(frame) == want).all(), f"frame {index}"
        if of.video.pix_fmt in ("yuv420p", "yuvj420p"):
            covered.append(path.name)
            most = sum(want.nbytes for want in rgb)
            assert bytes_sent < 0.55 * most + 100_000 * len(indices), f"{bytes_sent} bytes sent for {most} of RGB"

    each(paths, check)
    print(f"{len(covered)} files of 4:2:0")
    assert len(covered) >= COVERED_MIN


def sent(cluster) -> int:
    return int(counters(cluster)["framecache_sent_bytes_total"])


def test_batches_and_memory(served):
    """Many at once, in any order and repeated, into memory of the caller's, beside what is kept from before."""
    paths, cluster, client = served
    path = next(
        path for path in paths if first(path).form == "yuv420p" and Served.of(client, cluster, path.name).video.num_frames > 20
    )
    of = Served.of(client, cluster, path.name)
    indices = [5, 3, 3, 19, 0, 11, 5]
    want = numpy.asarray(of.at(indices).data)
    out = numpy.full_like(want, 7)
    for _ in range(2):
        frames = of.at(indices, transport="yuv420", out=out)
        assert frames.data.address == out.ctypes.data and (out == want).all() and frames.indices == indices
        out[:] = 9


def test_what_is_resized_travels_as_rgb(served):
    """A spec that makes other pixels than the frame's own is made in the cluster, whatever the transport."""
    paths, cluster, client = served
    of = Served.of(client, cluster, next(path.name for path in paths if first(path).form == "yuv420p"))
    for wanted in ({"short": 32}, {"crop": 16}, {"mode": "gray"}, {"layout": "chw"}, {"dtype": "u16"}, {"layout": "planes"}):
        assert (of.rgb(0, transport="yuv420", **wanted) == of.rgb(0, **wanted)).all(), wanted
    with pytest.raises(fc.InvalidError, match="transport"):
        of.at([0], transport="yuv444")
