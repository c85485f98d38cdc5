"""The client that the drop-ins of this process share, and a video opened with it."""

from __future__ import annotations

import functools
import os
from typing import Any

from ._native import Client, Video
from .errors import UndecodableError, UnsupportedError


@functools.cache
def shared_client() -> Client:
    """One client for all that name none: of the cluster that the environment names. Safe under fork, as every client is."""
    return Client("env")


def opened(uri: Any, client: Client | None, stream: int | None = None) -> Video:
    """The video at `uri`, its best stream or that of an index, by `client` or by the shared one.

    Raises ``TypeError`` for what is no address, ``RuntimeError`` for what is no video (as the libraries do whose place is taken),
    and otherwise what ``Client.video`` raises.
    """
    if isinstance(uri, os.PathLike):
        uri = os.fspath(uri)
    if not isinstance(uri, str):
        raise TypeError(f"a video is named by its address (s3://bucket/key), not by a {type(uri).__name__}")
    try:
        video = (client or shared_client()).video(uri, stream=stream)
    except (UndecodableError, UnsupportedError) as error:
        raise RuntimeError(f"{uri} cannot be read as a video: {error}") from error
    if not video.num_frames:
        raise RuntimeError(f"{uri} is no video whose frames are counted: {video.format}")
    return video


def upright(video: Video) -> dict[str, Any]:
    """What to ask for beside the size, so that frames come as they are meant to be looked at."""
    return {"orientation": "apply"} if video.rotation % 360 else {}


def shown_size(video: Video) -> tuple[int, int]:
    """Width and height after rotation."""
    return (video.height, video.width) if video.rotation % 180 else (video.width, video.height)
