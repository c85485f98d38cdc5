"""Videos through a running node, beside what an independent reader makes of the same files."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import exact
import framecache as fc
import numpy
import painted
from conftest import Cluster, sha256

# Of every call: longer than any of them takes on a busy machine, and short enough that one that hangs is seen to.
TIMEOUT = 60

REFUSED = (fc.UndecodableError, fc.UnsupportedError, fc.TooLargeError, fc.InvalidError)


# Between the exact rule and swscale's fast path. Of 54 real files one reaches a mean of 1.55 (an animation, of large even areas
# in which swscale's tables err the same way), the others stay below 1.4.
LEVELS_MAX, LEVELS_MEAN_MAX = 3, 1.6


@dataclass
class Served:
    """A video of the cluster; each call has a deadline."""

    video: fc.Video

    @classmethod
    def of(cls, client: fc.Client, cluster: Cluster, name: str) -> Served:
        return cls(client.video(cluster.uri(name), timeout=TIMEOUT))

    def at(self, indices: Iterable[int], **wanted) -> fc.Frames:
        indices = list(indices)
        frames = self.video.get_frames_at(indices, timeout=TIMEOUT, **wanted)
        assert len(frames) == len(frames.indices) == len(indices)
        for times in (frames.pts_seconds, frames.duration_seconds):
            # Pages of a TIFF have none.
            assert times is None or len(times) == len(indices)
        return frames

    def planes(self, indices: Iterable[int], **wanted) -> list[str]:
        """The hash of each frame's planes, one behind the other."""
        return [sha256(frame) for frame in self.at(indices, layout="planes", **wanted)]

    def rgb(self, index: int, **wanted) -> numpy.ndarray:
        return numpy.asarray(self.at([index], **wanted)[0])

    def numbers(self, frames: fc.Frames) -> list[int | None]:
        return [painted.number_of(numpy.asarray(frame)) for frame in frames]


def far(ours: numpy.ndarray, theirs: numpy.ndarray) -> tuple[int, float]:
    """The largest and the mean distance of two pictures, in levels."""
    apart = numpy.abs(ours.astype(int) - theirs)
    return int(apart.max()), float(apart.mean())


def plausible(picture: exact.Picture, theirs: numpy.ndarray, interlaced: bool) -> bool:
    """Whether the exact rule's RGB is as near to swscale's as the two conversions are to one another.

    swscale's fast path is off by up to three levels; where it takes the slow one it interpolates chroma, and only a mean says
    anything.
    """
    most, mean = far(picture.rgb(), theirs)
    if picture.copied is not None:
        return most == 0
    even = picture.width % 2 == 0 and picture.height % 2 == 0
    if exact.depth_of(picture.form) == 8 and "420" in picture.form and even and not interlaced:
        return most <= LEVELS_MAX and mean < LEVELS_MEAN_MAX
    if exact.depth_of(picture.form) == 8 and "444" in picture.form:
        return most <= 1
    return mean < 8


def each(things: Iterable, check: Callable, named: Callable = lambda thing: thing.name) -> None:
    """Every thing is checked, whatever becomes of the others; what failed is said together."""
    wrong, count = [], 0
    for thing in things:
        count += 1
        try:
            check(thing)
        except Exception as error:  # each one is reported below
            wrong.append(f"{named(thing)}: {type(error).__name__}: {str(error)[:400]}")
    assert count and not wrong, "\n" + "\n".join(wrong)


def counters(cluster: Cluster) -> dict[str, float]:
    """Every counter of the cluster, summed over nodes and labels."""
    sums: dict[str, float] = {}
    for address in cluster.admins:
        where = address if "://" in address else f"http://{address}"
        with urllib.request.urlopen(f"{where}/metrics", timeout=TIMEOUT) as reply:
            text = reply.read().decode()
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)", text, re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def origin_bytes(cluster: Cluster) -> int:
    """What the cluster has read from its origin since it started."""
    return int(counters(cluster)["framecache_origin_read_bytes_total"])


def copied(rows: Iterable[dict], folder: Path) -> None:
    for row in rows:
        (folder / row["file"]).write_bytes(row["path"].read_bytes())
