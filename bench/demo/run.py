#!/usr/bin/env python3
"""The demo: real photographs and clips of real videos, by a plain loader and by one node of Framecache, cold and warm.

usage: run.py [--data FOLDER] [--videos FOLDER] [--binaries target/release] [--out demo-out]

Starts `framecache-node dev` over each folder, runs each pass in a Python process of its own, prints what they cost, writes
OUT/contact-sheet.png, OUT/clips.png and OUT/demo.json, and ends what it started, however it ends. Exit status 1 when a pass
fails, one of the compared pictures differs from Pillow's by a single byte, or one of the compared frames is not PyAV's. Without a
folder of videos there are no clips.
"""

import argparse
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meter import pss_mib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# The node's counters, by what the table calls them. A sample counts when its labels hold all of those given here.
COUNTERS = {
    "origin requests": ("framecache_origin_requests_total", {}),
    "decodes": ("framecache_units_total", {}),
}

# Clips of this many frames, every other one of the video, as action recognition takes them.
CLIPS, CLIP_FRAMES, CLIP_STEP = 64, 16, 2
SEED = 17

# A node starts in about a second; a machine that is busy with a build may need twenty times that.
READY_S = 30
# The plain loader needs about two seconds; a pass that takes a hundred times that hangs.
PASS_S = 300
STOP_S = 15


class Failed(Exception):
    """Ends the demo; the message is for the person in front of it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / ".build/demo/photographs", help="made by photographs.py")
    parser.add_argument("--videos", type=Path, default=ROOT / ".build/demo/videos", help="made by videos.py")
    parser.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-out")
    asked = parser.parse_args()
    # A SIGTERM takes the same way out as Ctrl-C, through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        pictures, wrong_pictures = demo(asked.data.resolve(), asked.binaries.resolve(), asked.out)
        clips, wrong_clips = clip_demo(asked.videos.resolve(), asked.binaries.resolve(), asked.out)
        (asked.out / "demo.json").write_text(json.dumps([*pictures, *clips], indent=1) + "\n")
        return 1 if wrong_pictures + wrong_clips else 0
    except Failed as failed:
        print(f"demo: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def demo(data: Path, binaries: Path, out: Path) -> tuple[list[dict], int]:
    """The photographs' passes, and how many pictures differ."""
    keys = sorted(str(path.relative_to(data)) for path in data.rglob("*.jpg"))
    if not keys:
        raise Failed(f"no photographs in {data}; photographs.py makes them")
    with tempfile.TemporaryDirectory(prefix="framecache-demo-") as scratch:
        names = Path(scratch) / "keys"
        names.write_text("".join(f"{key}\n" for key in keys))
        with node(binaries, data, Path(scratch), out / "node.log") as ready:
            work = ["--bucket", ready["bucket"], "--keys", str(names)]
            plain = ["plain_loader.py", "--endpoint", url(ready["s3_origin"]), *work]
            cached = ["framecache_loader.py", "--node", ready["nodes"][0]["quic"], "--originals", str(data), *work]
            if ready["ca"]:
                cached += ["--ca", ready["ca"]]
            print(
                f"{len(keys)} photographs, short side to 256, the middle 224, batches of 64; one node, one S3 origin\n",
                flush=True,
            )
            rows = [
                measured("boto3 + Pillow", ready, plain),
                measured("framecache, cold", ready, [*cached, "--seed", "17"]),
                measured("framecache, warm", ready, [*cached, "--seed", "18"]),
            ]
            print(table(rows, "pictures/s"))
            picture = ["--spec", "image?short=256&crop=224", f"s3://{ready['bucket']}/"]
            sheet = contact_sheet(binaries, ready, picture, out / "contact-sheet.png")
    checked = sum(row["checked"] for row in rows)
    different = sum(len(row["different"]) for row in rows)
    print(f"pixels: {checked - different} of {checked} compared pictures equal Pillow's, byte for byte")
    print(f"contact sheet: {relative(sheet)}")
    return rows, different


def clip_demo(videos: Path, binaries: Path, out: Path) -> tuple[list[dict], int]:
    """The clips' passes, and how many frames differ."""
    receipt = videos.with_name(videos.name + ".json")
    if not receipt.exists():
        print(f"\nno clips: there is no {relative(receipt)}; videos.py makes it")
        return [], 0
    found = json.loads(receipt.read_text())
    with tempfile.TemporaryDirectory(prefix="framecache-demo-") as scratch:
        clips, kept = Path(scratch) / "clips.json", [Path(scratch) / f"{name}.npz" for name in ("cold", "warm")]
        clips.write_text(json.dumps(drawn(found)))
        with node(binaries, videos, Path(scratch), out / "clips-node.log") as ready:
            work = ["--bucket", ready["bucket"], "--clips", str(clips)]
            plain = ["plain_clips.py", "--endpoint", url(ready["s3_origin"]), *work]
            asking = ["--node", ready["nodes"][0]["quic"], *(["--ca", ready["ca"]] if ready["ca"] else []), *work]
            sizes = ", ".join(sorted({one["size"] for one in found}))
            print(
                f"\n{CLIPS} clips of {CLIP_FRAMES} frames from {len(found)} videos ({sizes}), short side to 128, the middle 112, "
                "8 clips a batch\n",
                flush=True,
            )
            rows = [measured("boto3 + PyAV", ready, plain)]
            for name, file, seed in zip(("cold", "warm"), kept, (SEED, SEED + 1), strict=True):
                command = ["framecache_clips.py", *asking, "--keep", str(file), "--seed", str(seed)]
                rows.append(measured(f"framecache, {name}", ready, command))
            for row in rows:
                row["hit_ratio"] = None
            print(table(rows, "frames/s"))
            check = ["check_clips.py", *asking, "--originals", str(videos)]
            told = passed("the check of clips", [*check, *(word for file in kept for word in ("--kept", str(file)))])
            selection = ["video?uniform=10", *(f"s3://{ready['bucket']}/{one['key']}" for one in found)]
            sheet = contact_sheet(binaries, ready, selection, out / "clips.png")
    checked, different = told["checked"], len(told["different"])
    print(f"frames: {checked - different} of {checked} compared frames are PyAV's, resized as by Pillow, byte for byte")
    print(f"contact sheet: {relative(sheet)}")
    return rows, different


def drawn(videos: list[dict]) -> list[tuple[str, list[int]]]:
    """Clips at random, as a loader draws them: of each video as many, in no order."""
    dice, span = random.Random(SEED), CLIP_STEP * (CLIP_FRAMES - 1) + 1
    long = [one for one in videos if one["frames"] >= span]
    clips = []
    for number in range(CLIPS):
        video = long[number % len(long)]
        first = dice.randrange(video["frames"] - span + 1)
        clips.append((video["key"], list(range(first, first + span, CLIP_STEP))))
    dice.shuffle(clips)
    return clips


# ---- the node


@contextmanager
def node(binaries: Path, data: Path, scratch: Path, log: Path) -> Iterator[dict]:
    """A development node over the folder; yields its ready file, and ends the node and all that it started."""
    program = binaries / "framecache-node"
    if not program.exists():
        raise Failed(f"{program} is not built; `make demo` builds it")
    ready_file = scratch / "ready.json"
    with log.open("wb") as words:
        command = [program, "dev", "--data", data, "--ready-file", ready_file]
        process = subprocess.Popen(
            command, stdout=words, stderr=words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=mortal
        )
    try:
        yield ready(process, ready_file, log)
    finally:
        ended(process)


def ready(process: subprocess.Popen, ready_file: Path, log: Path) -> dict:
    deadline = time.monotonic() + READY_S
    while not ready_file.exists():
        if process.poll() is not None:
            raise Failed(f"the node ended with status {process.returncode} before it was ready\n{tail(log)}")
        if time.monotonic() > deadline:
            raise Failed(f"the node was not ready within {READY_S} s\n{tail(log)}")
        time.sleep(0.05)
    return json.loads(ready_file.read_text())


def ended(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        print(f"demo: the node did not end within {STOP_S} s of SIGTERM and was killed", file=sys.stderr)
    # What is left of its session: its decoders, or the node itself.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def mortal() -> None:
    """In the child: it goes when this process does, even by SIGKILL."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def tail(log: Path, lines: int = 20) -> str:
    words = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join([f"its last words, from {relative(log)}:", *words]) if words else "it said nothing"


# ---- one pass


def measured(name: str, ready: dict, command: list[str]) -> dict:
    counters, cpu = counted(ready), cpu_seconds(ready)
    result = passed(name, command)
    moved = {key: value - counters[key] for key, value in counted(ready).items()}
    plain = result["requests"] is not None
    return {
        "name": name,
        **result,
        "node_cpu_seconds": cpu_seconds(ready) - cpu,
        "node_pss_mib": sum(pss_mib(pid) for pid in processes(ready)),
        "origin_requests": result["requests"] if plain else moved["origin requests"],
        "decodes": None if plain else moved["decodes"],
        "hit_ratio": None if plain else 1 - moved["decodes"] / max(1, result["pictures"]),
    }


def passed(name: str, command: list[str]) -> dict:
    """What a pass says of itself."""
    ran = run([sys.executable, str(HERE / command[0]), *command[1:]])
    # The last line is the result, also where pixels differ: then its status is 1, and what it said is shown.
    lines = ran.stdout.strip().splitlines()
    if ran.returncode not in (0, 1) or not lines or not lines[-1].startswith("{"):
        raise Failed(f"{name} failed with status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    sys.stderr.write(ran.stderr)
    result = {"checked": 0, "different": [], **json.loads(lines[-1])}
    if ran.returncode and not result["different"]:
        raise Failed(f"{name} failed with status {ran.returncode}: {lines[-1]}")
    return result


def run(command: list[str], more_environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    try:
        env = {**os.environ, **(more_environment or {})}
        return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PASS_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end within {PASS_S} s: {' '.join(command)}") from None


def counted(ready: dict) -> dict[str, float]:
    """The counters above, summed over the nodes and over the labels that they do not name."""
    samples = [sample for each in ready["nodes"] for sample in metrics(url(each["admin"]) + "/metrics")]
    return {
        key: sum(value for name, labels, value in samples if name == wanted and some.items() <= labels.items())
        for key, (wanted, some) in COUNTERS.items()
    }


def metrics(address: str) -> list[tuple[str, dict[str, str], float]]:
    with urllib.request.urlopen(address, timeout=10) as reply:
        text = reply.read().decode()
    found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)", text, re.MULTILINE)
    return [(name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value)) for name, labels, value in found]


def cpu_seconds(ready: dict) -> float:
    """Of the nodes, their decoders, and those of their decoders that ended."""
    ticks = 0
    for pid in processes(ready):
        # proc_pid_stat(5): after the name in brackets, fields 14 to 17 are utime, stime, cutime, cstime.
        ticks += sum(int(field) for field in stat(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def processes(ready: dict) -> set[int]:
    """The nodes and all their descendants."""
    parents = {int(path.name): int(fields[1]) for path in Path("/proc").glob("[0-9]*") if (fields := stat(int(path.name)))}
    family = {each["pid"] for each in ready["nodes"]}
    while born := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= born
    return family & parents.keys()


def stat(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


# ---- what is shown


def table(rows: list[dict], rate: str) -> str:
    # Of clips one decode gives many frames, so that a ratio would flatter: decodes are counted.
    last = "hit ratio" if rate == "pictures/s" else "decodes"
    heads = ["", rate, "CPU-s loader", "CPU-s node*", "origin requests", last, "loader MiB", "node MiB"]
    lines = [heads]
    for row in rows:
        lines.append(
            [
                row["name"],
                f"{row['pictures'] / row['seconds']:,.0f}",
                f"{row['cpu_seconds']:.2f}",
                f"{row['node_cpu_seconds']:.2f}",
                f"{row['origin_requests']:.0f}",
                "-" if row["decodes"] is None else f"{row['hit_ratio']:.3f}" if last == "hit ratio" else f"{row['decodes']:.0f}",
                f"{row['pss_mib']:.0f}",
                f"{row['node_pss_mib']:.0f}",
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    drawn = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    drawn.append("* the node, its decoders, and the S3 origin that runs inside it here\n")
    return "\n".join(drawn)


def contact_sheet(binaries: Path, ready: dict, what: list[str], file: Path) -> Path:
    command = [str(binaries / "framecache"), "get", *what, "--contact-sheet", str(file), "--columns", "10"]
    address = {"FRAMECACHE_ADDR": ready["nodes"][0]["quic"], **({"FRAMECACHE_CA": ready["ca"]} if ready["ca"] else {})}
    ran = run(command, address)
    if ran.returncode or not file.exists():
        raise Failed(f"no contact sheet, status {ran.returncode} of {' '.join(command)}\n{ran.stdout}{ran.stderr}")
    return file


def url(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


def relative(path: Path) -> str:
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
