"""The drop-ins for torchcodec and decord: names, shapes, exceptions. Frames here are a stand-in's; no cluster is asked."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import framecache as fc
import numpy
import pytest

COUNT, HEIGHT, WIDTH = 10, 6, 8
# Twice as long as the others is the frame before the last.
STARTS = [0.5 + 0.25 * place for place in range(COUNT - 1)] + [3.0]
END = 3.25


class Video:
    """Ten frames, each filled with its own number; what is asked for is kept."""

    num_frames, num_frames_header, average_fps = COUNT, 99, 4.0
    begin_stream_seconds, end_stream_seconds, duration_seconds = STARTS[0], END, END - STARTS[0]
    width, height, rotation, size, keyframes = WIDTH, HEIGHT, 0, 1000, [0, 5]
    codec, pix_fmt, format = "h264", "yuv420p", "mp4"
    color_primaries, color_space, color_transfer = "bt709", "bt709", None
    header_fps, sample_aspect = 30.0, None

    def __init__(self):
        self.asked = []

    def get_frames_at(self, indices, **wanted):
        self.asked.append((list(indices), wanted))
        width, height = wanted.get("size", (WIDTH, HEIGHT))
        data = numpy.stack([numpy.full((height, width, 3), index, "uint8") for index in indices])
        ends = [*STARTS[1:], END]
        lengths = [ends[index] - STARTS[index] for index in indices]
        return Frames(data, list(indices), [STARTS[index] for index in indices], lengths)

    def get_frames_played_at(self, seconds, **wanted):
        return self.get_frames_at([sum(start <= at for start in STARTS) - 1 for at in seconds], **wanted)

    def get_frames_played_in_range(self, start, stop, fps=None, **wanted):
        if fps:
            return self.get_frames_played_at([start + tick / fps for tick in range(round((stop - start) * fps))], **wanted)
        first = sum(each <= start for each in STARTS) - 1
        return self.get_frames_at([place for place in range(first, COUNT) if STARTS[place] < stop], **wanted)


class Frames(SimpleNamespace):
    def __init__(self, data, indices, pts_seconds, duration_seconds):
        super().__init__(data=data, indices=indices, pts_seconds=pts_seconds, duration_seconds=duration_seconds)

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, place):
        return self.data[place]


class Client:
    def __init__(self, video):
        self._video = video

    def video(self, uri, stream=None):
        self._video.stream = stream
        if isinstance(self._video, Exception):
            raise self._video
        return self._video


class Array(numpy.ndarray):
    """As much of a tensor as the drop-in needs."""

    def permute(self, *axes):
        return self.transpose(axes)

    def to(self, device):
        moved = self.view(Array)
        moved.put = device
        return moved


@pytest.fixture
def torch(monkeypatch):
    """A stand-in for torch, by numpy, so that the rules are tested where torch is not installed."""
    stub = SimpleNamespace(
        uint8=numpy.uint8,
        float64=numpy.float64,
        from_dlpack=lambda data: numpy.asarray(data).view(Array),
        tensor=lambda values, dtype: numpy.array(values, dtype).view(Array),
    )
    monkeypatch.setitem(sys.modules, "torch", stub)
    return stub


@pytest.fixture
def decoder(torch):
    from framecache.torchcodec import VideoDecoder

    return lambda video=None, **settings: VideoDecoder("s3://b/v.mp4", client=Client(video or Video()), **settings)


@pytest.fixture
def reader():
    from framecache.decord import VideoReader, bridge

    yield lambda video=None, **settings: VideoReader("s3://b/v.mp4", client=Client(video or Video()), **settings)
    bridge.reset_bridge()


def numbers(pixels) -> list[int]:
    """Which frames these are."""
    array = numpy.asarray(pixels)
    return array.reshape(-1, HEIGHT * WIDTH * 3)[:, 0].tolist()


def test_importing_them_imports_nothing_heavy():
    """Neither torch nor numpy, until they are used."""
    script = "import sys, framecache.torchcodec, framecache.decord; print('numpy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]


# --- torchcodec


def test_a_decoder_is_a_sequence(decoder):
    """Ints and slices, from the start and from the end; channels first, unless asked otherwise."""
    decoder_ = decoder()
    assert len(decoder_) == COUNT
    assert decoder_[3].shape == (3, HEIGHT, WIDTH) and numbers(decoder_[3]) == [3] and numbers(decoder_[-1]) == [9]
    assert numbers(decoder_[numpy.int64(4)]) == [4]
    for cut in (slice(None), slice(2, 7, 2), slice(-3, None), slice(-100, 100)):
        assert numbers(decoder_[cut]) == list(range(COUNT))[cut]
    assert decoder_[5:2].shape == (0, 3, HEIGHT, WIDTH)
    assert decoder(dimension_order="NHWC")[2:4].shape == (2, HEIGHT, WIDTH, 3)
    for wrong, error in (("a", TypeError), (1.5, TypeError), (10, IndexError), (-11, IndexError)):
        with pytest.raises(error):
            decoder_[wrong]
    with pytest.raises(RuntimeError, match="step"):
        decoder_[::-1]


def test_a_decoder_gives_frames_and_times(decoder):
    """`Frame` and `FrameBatch`, with pts and duration; in the order of the request, repeated or not."""
    decoder_ = decoder()
    frame = decoder_.get_frame_at(8)
    assert (numbers(frame.data), frame.pts_seconds, frame.duration_seconds) == ([8], 2.5, 0.5)
    data, pts_seconds, duration_seconds = frame
    assert (numbers(data), pts_seconds, duration_seconds) == ([8], 2.5, 0.5)
    batch = decoder_.get_frames_at(numpy.array([9, 0, -1, 0]))
    assert numbers(batch.data) == [9, 0, 9, 0] and batch.pts_seconds.tolist() == [3.0, 0.5, 3.0, 0.5]
    assert len(batch) == 4 and [numbers(each.data) for each in batch] == [[9], [0], [9], [0]]
    assert batch[1:3].duration_seconds.tolist() == [0.25, 0.25] and "4, 3, 6, 8" in repr(batch)
    assert numbers(decoder_.get_frames_in_range(2, 9, 3).data) == [2, 5, 8]
    assert len(decoder_.get_frames_in_range(4, 4)) == 0
    with pytest.raises(IndexError, match="10"):
        decoder_.get_frames_at([0, 10])


def test_a_decoder_knows_what_is_played(decoder):
    """At a time, in a range, at a rate; a time outside is an error of torchcodec's class."""
    decoder_ = decoder()
    assert numbers(decoder_.get_frame_played_at(2.9).data) == [8] and numbers(decoder_.get_frame_played_at(0.5).data) == [0]
    assert numbers(decoder_.get_frames_played_at([3.2, 0.6]).data) == [9, 0]
    assert numbers(decoder_.get_frames_played_in_range(0.6, 1.5).data) == [0, 1, 2, 3]
    resampled = decoder_.get_frames_played_in_range(0.6, 1.6, fps=2)
    assert numbers(resampled.data) == [0, 2] and resampled.pts_seconds.tolist() == [0.6, 1.1]
    assert resampled.duration_seconds.tolist() == [0.5, 0.5]
    assert numbers(decoder_.get_all_frames().data) == list(range(COUNT))
    assert len(decoder_.get_frames_played_in_range(1.0, 1.0)) == 0
    for outside in (0.49, END, float("nan")):
        with pytest.raises(IndexError, match=r"3\.25"):
            decoder_.get_frame_played_at(outside)
        with pytest.raises(RuntimeError, match=r"3\.25"):
            decoder_.get_frames_played_at([1.0, outside])
    for a, b in ((2.0, 1.0), (0.0, 1.0), (1.0, END + 0.1), (END, END)):
        with pytest.raises(ValueError):
            decoder_.get_frames_played_in_range(a, b)
    for fps in (0, -1, float("inf")):
        with pytest.raises(RuntimeError, match="fps"):
            decoder_.get_frames_played_in_range(1.0, 2.0, fps)


def test_a_decoder_has_torchcodecs_metadata(decoder):
    """By its names; the header's count stands beside the real one."""
    told = decoder().metadata
    assert (told.num_frames, told.num_frames_from_content, told.num_frames_from_header) == (COUNT, COUNT, 99)
    assert (told.begin_stream_seconds, told.end_stream_seconds, told.duration_seconds) == (0.5, 3.25, 2.75)
    assert (told.width, told.height, told.codec, told.pixel_format, told.rotation) == (WIDTH, HEIGHT, "h264", "yuv420p", None)
    assert told.average_fps == COUNT / 2.75 and "num_frames: 10" in repr(told)


def test_a_decoder_asks_for_what_was_meant(decoder, torch):
    """A spec's keywords reach the cluster; rotated videos come upright, as from torchcodec; the rest is refused."""
    turned = Video()
    turned.rotation = -90
    decoder_ = decoder(turned, short=4)
    decoder_[0]
    assert turned.asked == [([0], {"damaged": "error", "orientation": "apply", "short": 4})]
    assert (decoder_.metadata.width, decoder_.metadata.height, decoder_.metadata.rotation) == (HEIGHT, WIDTH, -90.0)
    assert decoder(device="cuda:1").get_frames_at([0]).data.put == "cuda:1"
    plain = Video()
    decoder(plain, spec="image?short=5", damaged="keep")[1]
    assert plain.asked == [([1], {"spec": "image?short=5", "damaged": "keep"})]
    assert decoder(stream_index=1).stream_index == 1
    decoder(seek_mode="approximate", num_ffmpeg_threads=0, output_dtype=torch.uint8)
    for wrong in (
        {"seek_mode": "fast"},
        {"dimension_order": "CHWN"},
        {"transforms": []},
        {"custom_frame_mappings": "{}"},
        {"output_dtype": torch.float64},
        {"num_ffmpeg_threads": None},
        {"layout": "chw"},
    ):
        with pytest.raises(ValueError):
            decoder(**wrong)


# --- decord


def test_a_reader_is_a_sequence(reader):
    """Ints and slices; batches of lists and arrays; and what runs out of it is an `IndexError`."""
    reader_ = reader()
    assert len(reader_) == COUNT and reader_[3].shape == (HEIGHT, WIDTH, 3)
    assert numbers(reader_[-1].asnumpy()) == [9] and numbers(reader_[2:7:2]) == [2, 4, 6]
    batch = reader_.get_batch([9, 0, -1, 0])
    assert batch.shape == (4, HEIGHT, WIDTH, 3) and batch.asnumpy().dtype == numpy.uint8 and len(batch) == 4
    assert numbers(batch) == [9, 0, 9, 0] and numbers(reader_.get_batch(numpy.array([1, 2]))) == [1, 2]
    assert reader_.get_batch([]).shape == (0, HEIGHT, WIDTH, 3) and numbers(reader_[::-1]) == list(range(COUNT))[::-1]
    assert [numbers(frame)[0] for frame in reader_] == list(range(COUNT))
    for outside in ([10], [0, -11]):
        with pytest.raises(IndexError, match="10 frames"):
            reader_.get_batch(outside)
    with pytest.raises(IndexError):
        reader_[10]


def test_a_reader_goes_on(reader):
    """`next` behind what was taken, sought or skipped; behind the last frame it stops."""
    reader_ = reader()
    assert [numbers(reader_.next())[0] for _ in range(2)] == [0, 1]
    reader_.skip_frames(3)
    assert numbers(reader_.next()) == [5]
    reader_.seek(8)
    assert numbers(reader_.next()) == [8]
    reader_.seek_accurate(1)
    assert numbers(reader_.next()) == [1] and numbers(reader_[6]) == [6] and numbers(reader_.next()) == [7]
    reader_.skip_frames(50)
    with pytest.raises(StopIteration):
        reader_.next()
    for outside in (10, -1):
        with pytest.raises(IndexError):
            reader_.seek(outside)
    with pytest.raises(ValueError):
        reader_.skip_frames(0)


def test_a_reader_knows_its_times(reader):
    """Rate, key frames, and from when until when a frame is seen."""
    reader_ = reader()
    assert reader_.get_avg_fps() == 4.0 and reader_.get_key_indices() == [0, 5]
    assert reader_.get_frame_timestamp(8).tolist() == [2.5, 3.0]
    assert reader_.get_frame_timestamp([0, -1]).tolist() == [[0.5, 0.75], [3.0, 3.25]]
    assert reader_.get_frame_timestamp(slice(1, 3)).shape == (2, 2) and reader_.get_frame_timestamp([]).shape == (0, 2)
    with pytest.raises(IndexError):
        reader_.get_frame_timestamp([10])


def test_a_reader_makes_a_size(reader):
    """Width, height or both; one that is left as it is is the video's, after rotation."""
    for given, size in (
        ({}, None),
        ({"width": 4}, (4, HEIGHT)),
        ({"height": 3}, (WIDTH, 3)),
        ({"width": 4, "height": 3}, (4, 3)),
        ({"width": WIDTH, "height": -1}, None),
    ):
        video = Video()
        reader(video, **given)[0]
        assert video.asked == [([0], {"size": size, "filter": "bicubic"} if size else {})], given
    turned = Video()
    turned.rotation = 90
    reader(turned, width=4)[0]
    assert turned.asked == [([0], {"orientation": "apply", "size": (4, WIDTH), "filter": "bicubic"})]


def test_a_bridge_makes_tensors(reader, torch):
    """For the thread that sets it, and for those that set none if it is the main one; on the device of the reader's context."""
    from framecache.decord import NDArray, bridge, cpu, gpu

    reader_ = reader(ctx=cpu(0))
    assert isinstance(reader_[0], NDArray)
    with bridge.use_torch():
        assert isinstance(reader_[0], Array) and numbers(reader_.get_batch([2, 1])) == [2, 1]
        assert reader(ctx=gpu(3)).get_batch([0]).put == "cuda:3"
    assert isinstance(reader_[0], NDArray)
    bridge.set_bridge("torch")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(type(reader_[0])))
    thread.start()
    thread.join(30)
    assert seen == [Array]
    with pytest.raises(ValueError, match="mxnet"):
        bridge.set_bridge("mxnet")


# --- both


def test_what_is_no_video_is_said_in_their_words(decoder, reader):
    """`RuntimeError` where the bytes are none; what is missing, or is no address, keeps its own class."""
    for make in (decoder, reader):
        for error, kind in (
            (fc.UndecodableError("no video"), RuntimeError),
            (fc.UnsupportedError("encrypted"), RuntimeError),
            (fc.NotFoundError("none"), FileNotFoundError),
        ):
            with pytest.raises(kind) as caught:
                make(error)
            assert caught.value is error or caught.value.__cause__ is error
        pages = Video()
        pages.num_frames = None
        with pytest.raises(RuntimeError):
            make(pages)
    from framecache.decord import VideoReader

    with pytest.raises(TypeError):
        VideoReader(b"bytes", client=Client(Video()))


@pytest.mark.peers
def test_real_tensors_share_the_memory():
    """With torch itself: channels first is a view, times are float64."""
    torch = pytest.importorskip("torch")
    from framecache.decord import VideoReader, bridge
    from framecache.torchcodec import VideoDecoder

    batch = VideoDecoder("s3://b/v.mp4", client=Client(Video())).get_frames_at(torch.tensor([3, -1]))
    assert batch.data.shape == (2, 3, HEIGHT, WIDTH) and batch.data.dtype == torch.uint8
    assert batch.data.permute(0, 2, 3, 1).is_contiguous()
    assert batch.pts_seconds.dtype == torch.float64 and batch.pts_seconds.tolist() == [1.25, 3.0]
    assert [tuple(each.data.shape) for each in batch] == [(3, HEIGHT, WIDTH)] * 2
    with bridge.use_torch():
        assert VideoReader("s3://b/v.mp4", client=Client(Video())).get_batch(torch.tensor([1])).shape == (1, HEIGHT, WIDTH, 3)
