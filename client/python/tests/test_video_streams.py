"""Videos with several streams: each by its index in the file, and FFmpeg's best where none is named."""

import av
import clips
import exact
import framecache as fc
import numpy
import painted
import pytest
from conftest import start, stop
from videos import TIMEOUT, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A file of two video streams, the second the best, one of a single stream, and a picture."""
    folder, state = tmp_path_factory.mktemp("streams"), tmp_path_factory.mktemp("streams-state")
    clips.two_streams(folder / "two.mp4")
    with av.open(str(folder / "two.mp4")) as source, av.open(str(folder / "one.mkv"), "w") as out:
        copy = out.add_stream_from_template(source.streams[1])
        for packet in source.demux(source.streams[1]):
            if packet.dts is not None:
                packet.stream = copy
                out.mux(packet)
    cluster = start(folder, state, nodes=2)
    with cluster.client() as client:
        yield folder, cluster, client
    stop(cluster)


def test_each_stream_is_served(served):
    """Its facts, its frames in any order, and its times; in turn, so that nothing that is kept of one is given for another."""
    folder, cluster, client = served
    uri = cluster.uri("two.mp4")
    for _ in range(2):
        for stream, first in ((0, 0), (1, 100), (None, 100)):
            of = Served(client.video(uri, stream=stream, timeout=TIMEOUT))
            which = 1 if stream is None else stream
            assert (of.video.stream, of.video.streams, of.video.num_frames) == (which, [0, 1], 40)
            picture = next(exact.walk(folder / "two.mp4", stream=which))
            assert (of.video.width, of.video.height) == (picture.width, picture.height)
            indices = [17, 3, 39, 0, 17]
            for wanted in ({}, {"layout": "planes"}, {"transport": "yuv420"}):
                frames = of.at(indices, **wanted)
                if wanted.get("layout") != "planes":
                    assert of.numbers(frames) == [first + index for index in indices]
            assert (of.rgb(0) == picture.rgb()).all() and of.planes([0]) == [picture.sha256()]
            at = of.video.get_frames_played_at([of.at([7]).pts_seconds[0]], timeout=TIMEOUT)
            assert at.indices == [7] and of.numbers(at) == [first + 7]
            assert painted.number_of(numpy.asarray(of.video[-1])) == first + 39


def test_a_stream_that_is_none_is_named(served):
    """The error says which there are; what has no streams says so too, and a number that no file has is refused at once."""
    _, cluster, client = served
    with pytest.raises(fc.UnsupportedError, match="no video stream 2: there are 0, 1"):
        client.video(cluster.uri("two.mp4"), stream=2, timeout=TIMEOUT)
    with pytest.raises(fc.UnsupportedError, match="no video stream 1: there are 0"):
        client.video(cluster.uri("one.mkv"), stream=1, timeout=TIMEOUT)
    for stream in (-1, 64):
        with pytest.raises(fc.InvalidError):
            client.video(cluster.uri("two.mp4"), stream=stream)


def test_facts_of_the_header(served):
    """What the header says beside what there is."""
    _, cluster, client = served
    video = client.video(cluster.uri("two.mp4"), timeout=TIMEOUT)
    assert video.header_fps == pytest.approx(clips.RATE, rel=0.05) and video.sample_aspect in (None, (1, 1))
    one = client.video(cluster.uri("one.mkv"), timeout=TIMEOUT)
    assert (one.stream, one.streams) == (0, [0])
