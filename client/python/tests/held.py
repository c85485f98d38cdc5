"""What a node, its decoders and a client hold, as the kernel counts it, and whether it grows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from conftest import Cluster
from videos import counters

MEBIBYTE = 1 << 20

# A test that wants full size: `make soak`.
SOAK = "FRAMECACHE_SOAK" in os.environ

REST_SECONDS_MAX = 60


@dataclass(frozen=True)
class Held:
    """One moment."""

    # Proportional memory, in bytes: the node's, its decoders', this process's.
    node: int
    workers: int
    client: int
    # Files in memory that the node shares with its decoders, and bytes in them.
    files: int
    shared: int
    # Of the node: descriptors that are no sockets, sockets, threads. Of this process: all descriptors, threads.
    descriptors: int
    sockets: int
    threads: int
    own_descriptors: int
    own_threads: int

    def __str__(self) -> str:
        mib = {name: getattr(self, name) / MEBIBYTE for name in ("node", "workers", "client", "shared")}
        memory = ", ".join(f"{name} {value:.1f}" for name, value in mib.items())
        return (
            f"MiB: {memory}; {self.files} shared files, {self.descriptors} descriptors, {self.sockets} sockets, "
            f"{self.threads} threads; own {self.own_descriptors} descriptors, {self.own_threads} threads"
        )


def pss(pid: int) -> int:
    """Proportional memory; 0 of a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def children(pid: int) -> list[int]:
    """Processes that it started and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def targets(pid: int | str) -> dict[str, str]:
    """What each descriptor of a process is."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[str(entry)] = str(entry.readlink())
        except OSError:
            continue  # closed between the two looks
    return found


def held(pid: int) -> Held:
    """Of a node by its process, and of this process."""
    opened, files = targets(pid), {}
    for entry, target in opened.items():
        if target.startswith("/memfd:"):
            try:
                stat = Path(entry).stat()
            except OSError:
                continue
            files[stat.st_ino] = 512 * stat.st_blocks
    sockets = sum(target.startswith("socket:") for target in opened.values())
    return Held(
        node=pss(pid),
        workers=sum(map(pss, children(pid))),
        client=pss(os.getpid()),
        files=len(files),
        shared=sum(files.values()),
        descriptors=len(opened) - sockets,
        sockets=sockets,
        threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
        own_descriptors=len(targets("self")),
        own_threads=len(list(Path("/proc/self/task").iterdir())),
    )


def at_rest(cluster: Cluster) -> Held:
    """What is held once all that was asked is over: no memory reserved, no stream open, no decoder at work."""
    end = time.monotonic() + REST_SECONDS_MAX
    busy = ("framecache_budget_in_use_bytes", "framecache_budget_waiting", "framecache_streams", "framecache_decode_inside")
    while True:
        found = counters(cluster)
        left = {name: found.get(name, 0) for name in busy if found.get(name, 0)}
        if not left:
            return held(cluster.process.pid)
        assert time.monotonic() < end, f"it does not come to rest: {left}"
        time.sleep(0.05)  # there is nothing to wait on: it says how it stands when it is asked


def growth(moments: Sequence[tuple[int, Held]], of: Callable[[Held], int]) -> float:
    """How much a value grows over the second half of what was done: the line that fits best, from its beginning to its end."""
    half = moments[len(moments) // 2 :]
    done, values = numpy.array([count for count, _ in half], float), numpy.array([of(moment) for _, moment in half], float)
    slope, _ = numpy.polyfit(done, values, 1)
    return float(slope * (done[-1] - done[0]))


def deaths(cluster: Cluster) -> int:
    """Decoders that ended otherwise than in order, whoever is to blame."""
    return int(counters(cluster)["framecache_decode_worker_deaths_total"])


def spread(values: Iterable[float]) -> str:
    """The middle, the highest hundredth, and the highest."""
    ordered = sorted(values)
    return f"median {ordered[len(ordered) // 2]:.3f} s, p99 {ordered[len(ordered) * 99 // 100]:.3f} s, worst {ordered[-1]:.3f} s"
