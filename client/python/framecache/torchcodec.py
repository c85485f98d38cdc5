"""torchcodec's ``VideoDecoder``, with frames from the cluster: change the import, and the path into an address.

    from framecache.torchcodec import VideoDecoder

    decoder = VideoDecoder("s3://photos/clips/v.mp4")
    decoder[0], decoder[-8:], decoder.get_frames_played_at([0.5, 1.0]).data

Names, shapes and exceptions are those of torchcodec 0.17. What differs: decoding is the cluster's, so that threads, seek mode and
device decide nothing about the pixels; an index always names the frame that it names for a reader from the first frame on; RGB is
Framecache's exact rule. ``spec`` and its keywords (``short=256, crop=224``) have frames made small before they travel.

Torch is imported when the first decoder is made.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from ._native import Client, Frames, Image, Video
from ._shared import opened, shown_size, upright

if TYPE_CHECKING:
    import torch

__all__ = ["Frame", "FrameBatch", "VideoDecoder", "VideoStreamMetadata"]

_ORDERS = ("NCHW", "NHWC")
_SEEK_MODES = ("exact", "approximate")


@dataclass
class Frame:
    """One frame: ``data`` is uint8, ``[C, H, W]`` or ``[H, W, C]``; times are in seconds."""

    data: torch.Tensor
    pts_seconds: float
    duration_seconds: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.data, self.pts_seconds, self.duration_seconds))

    def __repr__(self) -> str:
        return _shown(self)


@dataclass
class FrameBatch:
    """Several frames: ``data`` is uint8, ``[N, C, H, W]`` or ``[N, H, W, C]``; times are float64, ``[N]``, in seconds."""

    data: torch.Tensor
    pts_seconds: torch.Tensor
    duration_seconds: torch.Tensor

    def __iter__(self) -> Iterator[FrameBatch]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: Any) -> FrameBatch:
        return FrameBatch(self.data[key], self.pts_seconds[key], self.duration_seconds[key])

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return _shown(self)


def _shown(frames: Frame | FrameBatch) -> str:
    """A picture by its shape, not by its pixels."""
    return (
        f"{type(frames).__name__}(data={tuple(frames.data.shape)}, pts_seconds={frames.pts_seconds}, "
        f"duration_seconds={frames.duration_seconds})"
    )


@dataclass(frozen=True)
class VideoStreamMetadata:
    """What is known of the stream. ``…_from_header`` is what the file says, ``…_from_content`` what its packets say.

    Width and height are those of the frames, after rotation. ``None`` is what is not known, or what the cluster does not tell.
    """

    duration_seconds_from_header: float | None
    begin_stream_seconds_from_header: float | None
    bit_rate: float | None
    codec: str | None
    stream_index: int
    media_type: str
    width: int | None
    height: int | None
    num_frames_from_header: int | None
    average_fps_from_header: float | None
    pixel_aspect_ratio: Any
    rotation: float | None
    color_primaries: str | None
    color_space: str | None
    color_transfer_characteristic: str | None
    pixel_format: str | None
    begin_stream_seconds_from_content: float | None
    end_stream_seconds_from_content: float | None
    num_frames_from_content: int | None
    duration_seconds: float | None
    begin_stream_seconds: float | None
    end_stream_seconds: float | None
    num_frames: int | None
    average_fps: float | None

    def __repr__(self) -> str:
        rows = (f"  {field.name}: {getattr(self, field.name)}\n" for field in dataclasses.fields(self))
        return f"{type(self).__name__}:\n{''.join(rows)}"


def _metadata(video: Video) -> VideoStreamMetadata:
    width, height = shown_size(video)
    begin, end, count = video.begin_stream_seconds, video.end_stream_seconds, video.num_frames
    seconds = video.duration_seconds
    return VideoStreamMetadata(
        duration_seconds_from_header=None,
        begin_stream_seconds_from_header=None,
        bit_rate=video.size * 8 / seconds if seconds else None,
        codec=video.codec,
        stream_index=video.stream or 0,
        media_type="video",
        width=width,
        height=height,
        num_frames_from_header=video.num_frames_header,
        average_fps_from_header=video.header_fps or video.average_fps,
        pixel_aspect_ratio=Fraction(*video.sample_aspect) if video.sample_aspect else None,
        # torchcodec names a rotation only where there is one.
        rotation=float(video.rotation) if video.rotation % 360 else None,
        color_primaries=video.color_primaries,
        color_space=video.color_space,
        color_transfer_characteristic=video.color_transfer,
        pixel_format=video.pix_fmt,
        begin_stream_seconds_from_content=begin,
        end_stream_seconds_from_content=end,
        num_frames_from_content=count,
        duration_seconds=seconds,
        begin_stream_seconds=begin,
        end_stream_seconds=end,
        num_frames=count,
        average_fps=count / seconds if count and seconds else video.average_fps,
    )


class VideoDecoder:
    """A video of the cluster, by torchcodec's names.

    ``source`` is an address, ``s3://bucket/key``. ``dimension_order`` is ``"NCHW"`` (a view, no copy) or ``"NHWC"``. ``device``
    is where tensors are put. ``client`` is a ``framecache.Client``; without one, one for the environment's cluster is shared by
    the process. ``spec`` is a ``framecache.Image``, which then says whether frames are rotated; its keywords may stand in its
    place, and frames are rotated as they are meant to be seen. ``num_ffmpeg_threads`` and ``seek_mode`` are accepted, and change
    nothing. ``damaged="keep"`` has frames served whose loss was concealed. ``stream_index`` takes another
    stream than FFmpeg's best. Not available: ``transforms``, ``output_dtype`` other than uint8, ``custom_frame_mappings``.

    Raises ``ValueError`` for what is not available, ``RuntimeError`` where the object is no video, ``FileNotFoundError`` where
    there is none.
    """

    def __init__(
        self,
        source: Any,
        *,
        stream_index: int | None = None,
        dimension_order: Literal["NCHW", "NHWC"] = "NCHW",
        num_ffmpeg_threads: int = 1,
        device: Any = None,
        seek_mode: Literal["exact", "approximate"] = "exact",
        transforms: Sequence[Any] | None = None,
        output_dtype: Any = None,
        custom_frame_mappings: Any = None,
        client: Client | None = None,
        spec: Image | str | None = None,
        damaged: Literal["error", "keep"] = "error",
        **image: Any,
    ) -> None:
        import torch

        if seek_mode not in _SEEK_MODES:
            raise ValueError(f"seek_mode is {seek_mode!r}; it is one of {', '.join(_SEEK_MODES)}")
        if dimension_order not in _ORDERS:
            raise ValueError(f"dimension_order is {dimension_order!r}; it is one of {', '.join(_ORDERS)}")
        if num_ffmpeg_threads is None:
            raise ValueError("num_ffmpeg_threads is None; it is a number")
        if output_dtype not in (None, torch.uint8):
            raise ValueError(f"output_dtype is {output_dtype}; frames are torch.uint8")
        for name, value in (
            ("transforms", transforms),
            ("custom_frame_mappings", custom_frame_mappings),
        ):
            if value is not None:
                raise ValueError(f"{name} is not available from the cluster; see the documentation of framecache.torchcodec")
        if "layout" in image:
            raise ValueError("layout is said by dimension_order")
        self._torch = torch
        self._video = opened(source, client, stream_index)
        self._order, self._device = dimension_order, device
        self._wanted: dict[str, Any] = {"damaged": damaged}
        if spec is None:
            self._wanted |= {**upright(self._video), **image}
        else:
            self._wanted |= {"spec": spec, **image}
        self.metadata = _metadata(self._video)
        self.stream_index = self.metadata.stream_index

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: int | slice) -> torch.Tensor:
        """A frame, or the frames of a slice."""
        if isinstance(key, numbers.Integral):
            return self.get_frame_at(int(key)).data
        if isinstance(key, slice):
            return self.get_frames_in_range(key.start, key.stop, 1 if key.step is None else key.step).data
        raise TypeError(f"a frame is named by an int or a slice, not by a {type(key).__name__}")

    def get_frame_at(self, index: int) -> Frame:
        """The frame of an index; negative ones count from the end. Raises ``IndexError`` for one that is not there."""
        return self._single(self._asked([self._inside(index)]))

    def get_frames_at(self, indices: Sequence[int] | torch.Tensor) -> FrameBatch:
        """The frames of indices, in that order, repeated or not. Raises ``IndexError``."""
        return self._batch(self._asked([self._inside(index) for index in _plain(indices)]))

    def get_frames_in_range(self, start: int, stop: int, step: int = 1) -> FrameBatch:
        """The frames of ``range(start, stop, step)``, cut to what there is. Raises ``RuntimeError`` unless ``step`` > 0."""
        if step <= 0:
            raise RuntimeError(f"step is {step}; it must be greater than 0")
        return self._batch(self._asked(list(range(*slice(start, stop, step).indices(self._count)))))

    def get_frame_played_at(self, seconds: float) -> Frame:
        """The frame that is seen at a time. Raises ``IndexError`` outside of the stream."""
        if not self._plays(seconds):
            raise IndexError(f"{seconds} s is outside of {self._span}")
        return self._single(self._video.get_frames_played_at([float(seconds)], **self._wanted))

    def get_frames_played_at(self, seconds: Sequence[float] | torch.Tensor) -> FrameBatch:
        """The frames that are seen at times, in that order. Raises ``RuntimeError`` outside of the stream."""
        asked = [float(each) for each in _plain(seconds)]
        for each in asked:
            if not self._plays(each):
                raise RuntimeError(f"{each} s is outside of {self._span}")
        return self._batch(self._video.get_frames_played_at(asked, **self._wanted) if asked else None)

    def get_frames_played_in_range(self, start_seconds: float, stop_seconds: float, fps: float | None = None) -> FrameBatch:
        """The frames seen in ``[start_seconds, stop_seconds)``; with ``fps``, those seen at its ticks, with the ticks' times.

        Raises ``ValueError`` for a range that ends before it starts or reaches outside, ``RuntimeError`` for ``fps`` that is not
        positive.
        """
        if not start_seconds <= stop_seconds:
            raise ValueError(f"start_seconds is {start_seconds}, behind stop_seconds, {stop_seconds}")
        if not self._plays(start_seconds):
            raise ValueError(f"start_seconds is {start_seconds}, outside of {self._span}")
        if not stop_seconds <= self._end:
            raise ValueError(f"stop_seconds is {stop_seconds}, outside of {self._span}")
        if fps is not None and not (fps > 0 and math.isfinite(fps)):
            raise RuntimeError(f"fps must be positive, and is {fps}")
        if start_seconds == stop_seconds:
            return self._batch(None)
        batch = self._batch(self._video.get_frames_played_in_range(start_seconds, stop_seconds, fps, **self._wanted))
        if fps is not None:
            # As torchcodec has it: a frame that is resampled has the time and the length of its tick.
            ticks = [start_seconds + tick / fps for tick in range(len(batch))]
            batch.pts_seconds = self._torch.tensor(ticks, dtype=self._torch.float64)
            batch.duration_seconds = self._torch.tensor([1 / fps] * len(ticks), dtype=self._torch.float64)
        return batch

    def get_all_frames(self, fps: float | None = None) -> FrameBatch:
        """Every frame, or those seen at the ticks of ``fps``."""
        return self.get_frames_played_in_range(self._begin, self._end, fps)

    @property
    def _count(self) -> int:
        return self._video.num_frames or 0

    @property
    def _begin(self) -> float:
        return self._video.begin_stream_seconds or 0.0

    @property
    def _end(self) -> float:
        return self._video.end_stream_seconds or 0.0

    @property
    def _span(self) -> str:
        return f"the stream: it must be greater than or equal to {self._begin} and less than {self._end}"

    def _plays(self, seconds: float) -> bool:
        return self._begin <= seconds < self._end

    def _inside(self, index: int) -> int:
        """An index from the start; nothing is asked of the cluster for one that is not there."""
        count = self._count
        if not -count <= index < count:
            raise IndexError(f"frame index {index} is invalid; it must be less than {count}, and at least {-count}")
        return index % count

    def _asked(self, indices: list[int]) -> Frames | None:
        return self._video.get_frames_at(indices, **self._wanted) if indices else None

    def _batch(self, frames: Frames | None) -> FrameBatch:
        torch = self._torch
        if frames is None or not len(frames):
            # No frame has a shape, too: that of the frames there are.
            one = self._tensor(self._video.get_frames_at([0], **self._wanted))
            none = torch.tensor([], dtype=torch.float64)
            return FrameBatch(one[:0], none, none)
        times = (torch.tensor(list(each), dtype=torch.float64) for each in (frames.pts_seconds, frames.duration_seconds))
        return FrameBatch(self._tensor(frames), *times)

    def _single(self, frames: Frames) -> Frame:
        return Frame(self._tensor(frames)[0], float(frames.pts_seconds[0]), float(frames.duration_seconds[0]))

    def _tensor(self, frames: Frames) -> torch.Tensor:
        pixels = self._torch.from_dlpack(frames.data)
        if self._order == "NCHW":
            pixels = pixels.permute(0, 3, 1, 2)
        return pixels if self._device is None else pixels.to(self._device)


def _plain(values: Any) -> list[Any]:
    """Numbers of a list, an array or a tensor."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
