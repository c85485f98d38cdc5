"""What the native module offers. The names are re-exported by ``framecache``; use them from there."""

import builtins
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, final, overload

__version__: str

_Path = str | PathLike[str]

@final
class Image:
    """How a picture is made: decoded, resized, cropped."""

    def __new__(
        cls,
        short: int | None = None,
        crop: int | None = None,
        size: tuple[int, int] | None = None,
        filter: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear",
        *,
        max: int | None = None,
        max_pixels: int | None = None,
        multiple: int | None = None,
        tiles: int | None = None,
        box: tuple[int, int, int, int] | None = None,
        flip: bool = False,
        mode: Literal["rgb", "gray"] = "rgb",
        alpha: str = "drop",
        depth: Literal["pillow", "scale"] = "pillow",
        layout: Literal["hwc", "chw"] = "hwc",
        orientation: Literal["ignore", "apply"] = "ignore",
        truncated: Literal["error", "pad"] = "error",
        profile: Literal["exact", "fast"] = "exact",
    ) -> Self: ...
    @classmethod
    def parse(cls, text: str) -> Image: ...
    @property
    def output(self) -> tuple[int, int] | None: ...
    @property
    def shape(self) -> tuple[int, int, int] | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class RandomResizedCrop:
    """torchvision's ``RandomResizedCrop`` and ``RandomHorizontalFlip``, drawn by seed, epoch and address."""

    def __new__(
        cls,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (0.75, 4 / 3),
        flip: float = 0.0,
        seed: int = 0,
        epoch: int = 0,
        *,
        filter: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear",
        mode: Literal["rgb", "gray"] = "rgb",
        alpha: str = "drop",
        depth: Literal["pillow", "scale"] = "pillow",
        layout: Literal["hwc", "chw"] = "hwc",
        orientation: Literal["ignore", "apply"] = "ignore",
        truncated: Literal["error", "pad"] = "error",
        profile: Literal["exact", "fast"] = "exact",
    ) -> Self: ...
    def at(self, epoch: int) -> RandomResizedCrop: ...
    def draw(self, sample: str, *, width: int, height: int, orientation: int = 1) -> Image: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def epoch(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Raw:
    """Raw bytes of one version of an object: a read-only buffer."""

    @property
    def version(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Tensor:
    """Pixels: uint8, row-major, in the memory they were received into."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def version(self) -> str | None: ...
    @property
    def size(self) -> tuple[int, int] | None: ...
    @property
    def orientation(self) -> int | None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Batch:
    """Decoded pictures, one slot each, in the order they were asked for."""

    @property
    def data(self) -> Tensor: ...
    @property
    def valid(self) -> list[bool]: ...
    @property
    def errors(self) -> dict[int, Exception]: ...
    @property
    def sizes(self) -> list[tuple[int, int] | None]: ...
    @property
    def keys(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...

@final
class Frames:
    """Frames of one video or animation, in the order they were asked for."""

    @property
    def data(self) -> Tensor: ...
    @property
    def indices(self) -> list[int]: ...
    @property
    def pts_seconds(self) -> list[float]: ...
    @property
    def duration_seconds(self) -> list[float]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...

@final
class Clips:
    """Frames of several videos, one clip each, in the order they were asked for."""

    @property
    def data(self) -> Tensor: ...
    @property
    def valid(self) -> list[bool]: ...
    @property
    def errors(self) -> dict[int, Exception]: ...
    @property
    def keys(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Frames: ...
    def __iter__(self) -> Iterator[Frames]: ...

@final
class Video:
    """A video, an animation, or the pages of a TIFF: what is known of it, and its frames."""

    @property
    def uri(self) -> str: ...
    @property
    def num_frames(self) -> int | None: ...
    @property
    def num_frames_header(self) -> int | None: ...
    @property
    def average_fps(self) -> float | None: ...
    @property
    def header_fps(self) -> float | None: ...
    @property
    def sample_aspect(self) -> tuple[int, int] | None: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def streams(self) -> list[int]: ...
    @property
    def duration_seconds(self) -> float | None: ...
    @property
    def begin_stream_seconds(self) -> float | None: ...
    @property
    def end_stream_seconds(self) -> float | None: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def rotation(self) -> int: ...
    @property
    def codec(self) -> str | None: ...
    @property
    def pix_fmt(self) -> str | None: ...
    @property
    def color_space(self) -> str | None: ...
    @property
    def color_range(self) -> str | None: ...
    @property
    def color_primaries(self) -> str | None: ...
    @property
    def color_transfer(self) -> str | None: ...
    @property
    def format(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str: ...
    @property
    def keyframes(self) -> list[int]: ...
    @property
    def pts_origin(self) -> Literal["container", "synthesized"] | None: ...
    @property
    def damaged(self) -> bool: ...
    def get_frames_at(
        self,
        indices: Sequence[int],
        spec: Image | str | None = None,
        *,
        damaged: Literal["error", "keep"] = "error",
        transport: Literal["rgb", "yuv420"] = "rgb",
        out: Any = None,
        timeout: float | None = None,
        **image: Any,
    ) -> Frames: ...
    def get_frames_played_at(
        self,
        seconds: Sequence[float],
        spec: Image | str | None = None,
        *,
        damaged: Literal["error", "keep"] = "error",
        transport: Literal["rgb", "yuv420"] = "rgb",
        out: Any = None,
        timeout: float | None = None,
        **image: Any,
    ) -> Frames: ...
    def get_frames_played_in_range(
        self,
        start_seconds: float,
        stop_seconds: float,
        fps: float | None = None,
        spec: Image | str | None = None,
        *,
        damaged: Literal["error", "keep"] = "error",
        transport: Literal["rgb", "yuv420"] = "rgb",
        out: Any = None,
        timeout: float | None = None,
        **image: Any,
    ) -> Frames: ...
    def get_frames_uniform(
        self,
        count: int,
        spec: Image | str | None = None,
        *,
        damaged: Literal["error", "keep"] = "error",
        transport: Literal["rgb", "yuv420"] = "rgb",
        out: Any = None,
        timeout: float | None = None,
        **image: Any,
    ) -> Frames: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice, /) -> Frames: ...

@final
class Entry:
    """One object of a listing."""

    @property
    def uri(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str: ...

@final
class Listing:
    """The objects under a prefix, fetched by the page as they are iterated over."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Entry: ...

@final
class Stat:
    """What is known of an object without its bytes."""

    @property
    def version(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def orientation(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def frames(self) -> int | None: ...
    @property
    def decode_bytes(self) -> int: ...

@final
class Node:
    """One node of the cluster."""

    @property
    def id(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def state(self) -> Literal["joining", "serving", "leaving", "gone"]: ...
    @property
    def weight(self) -> float: ...
    @property
    def roles(self) -> list[str]: ...

@final
class Client:
    """A client of a cluster."""

    def __new__(
        cls,
        address: str | Sequence[str],
        ca: _Path | None = None,
        cert: _Path | None = None,
        key: _Path | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        memory: int | str = "1GiB",
    ) -> Self: ...
    def read(self, uri: str, start: int = 0, length: int | None = None, timeout: float | None = None) -> Raw: ...
    def images(
        self,
        uris: Iterable[str],
        spec: Image | RandomResizedCrop | str | None = None,
        on_error: Literal["raise", "skip", "fill"] = "raise",
        out: Any = None,
        timeout: float | None = None,
    ) -> Batch: ...
    def clips(
        self,
        clips: Iterable[tuple[str, Sequence[int] | str]],
        spec: Image | str | None = None,
        on_error: Literal["raise", "skip", "fill"] = "raise",
        out: Any = None,
        timeout: float | None = None,
        *,
        damaged: Literal["error", "keep"] = "error",
        transport: Literal["rgb", "yuv420"] = "rgb",
        stream: int | None = None,
        **image: Any,
    ) -> Clips: ...
    def video(self, uri: str, timeout: float | None = None, *, stream: int | None = None) -> Video: ...
    def stat(self, uri: str, timeout: float | None = None) -> Stat: ...
    def list(self, prefix: str, timeout: float | None = None) -> Listing: ...
    def explain(self, uri: str, spec: Image | str | None = None, timeout: float | None = None) -> dict[str, str]: ...
    def nodes(self, timeout: float | None = None) -> builtins.list[Node]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
