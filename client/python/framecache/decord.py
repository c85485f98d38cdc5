"""decord's ``VideoReader``, with frames from the cluster: change the import, and the path into an address.

    from framecache.decord import VideoReader, cpu

    reader = VideoReader("s3://photos/clips/v.mp4", ctx=cpu(0), width=320, height=240)
    reader[0].asnumpy(), reader.get_batch([0, 8, -1]).shape

Names, shapes and exceptions are those of decord 0.6. What differs: ``seek`` is as accurate as ``seek_accurate``; an index always
names the frame that it names for a reader from the first frame on; RGB is Framecache's exact rule, and a size is made by Pillow's
bicubic kernel. Threads and context decide nothing about the pixels; with the torch bridge ``gpu(n)`` is where tensors are put.

numpy is imported when an array is asked for, torch by its bridge.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import Client, Frames, Tensor
from ._shared import opened, shown_size, upright

if TYPE_CHECKING:
    import numpy

__all__ = ["Context", "DECORDError", "NDArray", "VideoReader", "bridge", "cpu", "gpu"]


class DECORDError(Exception):
    """What decord calls its own errors. Nothing here raises it: it is a name for code that catches it."""


@dataclass(frozen=True)
class Context:
    """A device: ``cpu(0)``, ``gpu(0)``."""

    device_type: str
    device_id: int = 0

    def __str__(self) -> str:
        return f"{self.device_type}({self.device_id})"


def cpu(dev_id: int = 0) -> Context:
    """The host's memory."""
    return Context("cpu", dev_id)


def gpu(dev_id: int = 0) -> Context:
    """A graphics processor: where the torch bridge puts frames."""
    return Context("gpu", dev_id)


class NDArray:
    """Frames as the native bridge gives them: uint8, ``[H, W, 3]`` or ``[N, H, W, 3]``, in the memory they were received into."""

    def __init__(self, pixels: Tensor | numpy.ndarray) -> None:
        self._pixels = pixels

    def asnumpy(self) -> numpy.ndarray:
        """The same memory as a numpy array."""
        import numpy

        return numpy.asarray(self._pixels)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._pixels.shape)

    @property
    def dtype(self) -> str:
        return "uint8"

    @property
    def size(self) -> int:
        return int(self.asnumpy().size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        import numpy

        return numpy.array(self._pixels, dtype=dtype, copy=copy)

    def __dlpack__(self, **how: Any) -> Any:
        return self._pixels.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._pixels.__dlpack_device__()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> numpy.ndarray:
        return self.asnumpy()[key]

    def __repr__(self) -> str:
        return f"<NDArray {'x'.join(map(str, self.shape))} @cpu(0)>"


class _Bridge:
    """What ``VideoReader`` returns: ``"native"`` is an ``NDArray``, ``"torch"`` a tensor.

    A thread that has set none has that of the main thread.
    """

    _names = ("native", "torch")

    def __init__(self) -> None:
        self._here = threading.local()
        self._everywhere = "native"

    def set_bridge(self, name: str) -> None:
        """Raises ``ValueError`` for a framework that is not there: tensors of others are made from numpy."""
        if name not in self._names:
            raise ValueError(f"bridge is {name!r}; it is one of {', '.join(self._names)}")
        self._here.name = name
        if threading.current_thread() is threading.main_thread():
            self._everywhere = name

    def reset_bridge(self) -> None:
        """Back to ``"native"``."""
        self.set_bridge("native")

    @contextlib.contextmanager
    def use_torch(self) -> Iterator[None]:
        """Tensors inside of a ``with``."""
        before = self.current
        self.set_bridge("torch")
        try:
            yield
        finally:
            self.set_bridge(before)

    @property
    def current(self) -> str:
        return getattr(self._here, "name", self._everywhere)

    def out(self, pixels: Tensor | numpy.ndarray, context: Context) -> Any:
        """Pixels as the bridge in force has them."""
        if self.current == "native":
            return NDArray(pixels)
        import torch

        tensor = torch.from_dlpack(pixels)
        return tensor if context.device_type == "cpu" else tensor.to(f"cuda:{context.device_id}")


bridge = _Bridge()


class VideoReader:
    """A video of the cluster, by decord's names.

    ``uri`` is an address, ``s3://bucket/key``. ``width`` and ``height`` are the frames' size; -1 leaves that one as it is, and
    ``filter`` is the kernel that makes it. ``ctx``, ``num_threads`` and ``fault_tol`` are accepted: a frame that is damaged is an
    error. ``client`` is a ``framecache.Client``; without one, one for the environment's cluster is shared by the process.

    Raises ``RuntimeError`` where the object is no video, ``FileNotFoundError`` where there is none.
    """

    def __init__(
        self,
        uri: Any,
        ctx: Context | None = None,
        width: int = -1,
        height: int = -1,
        num_threads: int = 0,
        fault_tol: int = -1,
        *,
        client: Client | None = None,
        filter: str = "bicubic",
    ) -> None:
        self._video = opened(uri, client)
        self._context = ctx or cpu(0)
        self._position = 0
        self._wanted: dict[str, Any] = upright(self._video)
        own = shown_size(self._video)
        size = (width if width > 0 else own[0], height if height > 0 else own[1])
        if size != own:
            self._wanted |= {"size": size, "filter": filter}

    def __len__(self) -> int:
        return self._video.num_frames or 0

    def __getitem__(self, idx: int | slice) -> Any:
        """A frame, ``[H, W, 3]``, or the frames of a slice. ``next`` goes on behind a frame that was taken so."""
        if isinstance(idx, slice):
            return self.get_batch(range(*idx.indices(len(self))))
        (place,) = self._inside([idx])
        self._position = place + 1
        return self._out(self._frames([place])[0])

    def get_batch(self, indices: Any) -> Any:
        """The frames of indices, ``[N, H, W, 3]``, in that order, repeated or not. Raises ``IndexError``."""
        inside = self._inside(indices)
        if not inside:
            import numpy

            # No frame has a shape, too: that of the frames there are.
            return self._out(numpy.asarray(self._frames([0]).data)[:0])
        return self._out(self._frames(inside).data)

    def next(self) -> Any:
        """The next frame. Raises ``StopIteration`` behind the last one."""
        if self._position >= len(self):
            raise StopIteration
        return self[self._position]

    def seek(self, pos: int) -> None:
        """``next`` goes on at this frame. Raises ``IndexError``."""
        if pos < 0:
            raise IndexError(f"position {pos} is negative")
        (self._position,) = self._inside([pos])

    seek_accurate = seek

    def skip_frames(self, num: int = 1) -> None:
        """``next`` goes on so many frames further. They are not decoded for it."""
        if num <= 0:
            raise ValueError(f"{num} frames cannot be skipped")
        self._position = min(self._position + num, len(self))

    def get_avg_fps(self) -> float:
        """Frames a second, on average."""
        return float(self._video.average_fps or 0.0)

    def get_key_indices(self) -> list[int]:
        """Indices of the frames that begin a decode unit."""
        return list(self._video.keyframes)

    def get_frame_timestamp(self, idx: Any) -> numpy.ndarray:
        """When frames begin and end to be seen, in seconds: ``[N, 2]``, or ``[2]`` for one index. Raises ``IndexError``."""
        import numpy

        one = not isinstance(idx, slice) and not hasattr(idx, "__len__")
        indices = range(*idx.indices(len(self))) if isinstance(idx, slice) else [idx] if one else idx
        inside = self._inside(indices)
        if not inside:
            return numpy.empty((0, 2))
        frames = self._frames(inside)
        begin = numpy.array(frames.pts_seconds)
        table = numpy.stack([begin, begin + numpy.array(frames.duration_seconds)], 1)
        return table[0] if one else table

    def _inside(self, indices: Any) -> list[int]:
        """Indices from the start; nothing is asked of the cluster if one is not there."""
        count = len(self)
        asked = indices.tolist() if hasattr(indices, "tolist") else list(indices)
        outside = [index for index in asked if not -count <= index < count]
        if outside:
            raise IndexError(f"out of bound indices: {outside}; there are {count} frames")
        return [int(index) % count for index in asked]

    def _frames(self, indices: list[int]) -> Frames:
        return self._video.get_frames_at(indices, **self._wanted)

    def _out(self, pixels: Tensor | numpy.ndarray) -> Any:
        return bridge.out(pixels, self._context)
