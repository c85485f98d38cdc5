"""A running node with known pictures, and what Pillow makes of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import framecache as fc
import PIL
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
READY_SECONDS_MAX = 60
SEED = 20240607


def binary(name: str, variable: str) -> Path:
    """A program of the project, where the build or the caller put it."""
    path = Path(os.environ.get(variable) or Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / name)
    if not path.exists():
        pytest.fail(f"{path} is absent: build it, or set {variable}")
    return path


@dataclass
class Cluster:
    address: str
    ca: str
    bucket: str
    folder: Path
    process: subprocess.Popen
    admins: list[str] = field(default_factory=list)

    def uri(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def client(self, **settings) -> fc.Client:
        return fc.Client(self.address, ca=self.ca, **settings)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FRAMECACHE_ADDR": self.address, "FRAMECACHE_CA": self.ca}


def start(folder: Path, state: Path, nodes: int = 1, bucket: str = "photos", **settings: str) -> Cluster:
    """Starts `framecache-node dev` over `folder`, and waits until it answers. `settings` are its options, or keys."""
    ready = state / "ready.json"
    log = state / "node.log"
    program = binary("framecache-node", "FRAMECACHE_NODE")
    command = [
        program,
        "dev",
        "--nodes",
        str(nodes),
        "--data",
        folder,
        "--bucket",
        bucket,
        "--ready-file",
        ready,
    ]
    options = {"disk": "256MiB"} | {name: value for name, value in settings.items() if name.islower()}
    command += [part for name, value in options.items() for part in (f"--{name}", value)]
    keys = {f"FRAMECACHE_{name}": value for name, value in settings.items() if name not in options}
    environment = {**os.environ, "XDG_STATE_HOME": str(state), **keys}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment
        )
    end = time.monotonic() + READY_SECONDS_MAX
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            pytest.fail(f"the node did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)  # the file is the event; there is nothing to wait on
    said = json.loads(ready.read_text())
    addresses = ",".join(node["quic"] for node in said["nodes"])
    return Cluster(addresses, said["ca"], said["bucket"], folder, process, [node["admin"] for node in said["nodes"]])


def stop(cluster: Cluster) -> None:
    cluster.process.send_signal(signal.SIGTERM)
    try:
        cluster.process.wait(30)
    except subprocess.TimeoutExpired:
        cluster.process.kill()
        cluster.process.wait()


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Pixels with edges, slopes and noise, so that every wrong rule shows."""
    dice = random.Random(seed)
    noise = Image.frombytes("RGB", (width, height), dice.randbytes(width * height * 3))
    slope = Image.linear_gradient("L").resize((width, height))
    base = Image.merge("RGB", (slope, slope.transpose(Image.Transpose.FLIP_LEFT_RIGHT), slope.rotate(90)))
    return Image.blend(base, noise, 0.2)


def jpeg(image: Image.Image, **settings) -> bytes:
    to = io.BytesIO()
    image.save(to, "JPEG", **{"quality": 88, **settings})
    return to.getvalue()


SIZES = [(500, 375), (375, 500), (256, 256), (641, 257), (300, 777), (1000, 400)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Cluster:
    assert PIL.__version__ == "13.0.0", "expected pixels are those of Pillow 13.0.0"
    print(f"seed {SEED}")
    folder, state = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("state")
    for sub in ("pets", "mix", "bad", "same", "raw"):
        (folder / sub).mkdir()
    for name, seed in (("cat", 1), ("dog", 2)):
        (folder / f"pets/{name}.jpg").write_bytes(jpeg(picture(320, 240, SEED + seed)))
    for index, size in enumerate(SIZES):
        settings = [{}, {"subsampling": 0}, {"progressive": True}, {"optimize": True}][index % 4]
        (folder / f"mix/{index}.jpg").write_bytes(jpeg(picture(*size, SEED + 10 + index), **settings))
    (folder / "mix/gray.jpg").write_bytes(jpeg(picture(300, 300, SEED + 20).convert("L")))
    for index in range(64):
        (folder / f"same/{index:02}.jpg").write_bytes(jpeg(picture(288, 272, SEED + 100 + index)))
    (folder / "fun").mkdir()
    frames = [picture(96, 96, SEED + 40 + number) for number in range(3)]
    frames[0].save(folder / "fun/ball.gif", save_all=True, append_images=frames[1:])
    # Only here: who reads pictures alone holds no codec.
    import painted

    painted.encode(folder / "fun/roll.mp4", "libx264", range(60), {"preset": "veryfast"}, bframes=2)
    good = jpeg(picture(300, 300, SEED + 30))
    (folder / "bad/cut.jpg").write_bytes(good[: len(good) // 2])
    (folder / "bad/text.jpg").write_bytes(b"no picture at all, " * 20)
    (folder / "bad/good.jpg").write_bytes(good)
    (folder / "raw/3m.bin").write_bytes(random.Random(SEED).randbytes(3 * 1024 * 1024 + 17))
    (folder / "raw/empty.bin").write_bytes(b"")
    cluster = start(folder, state)
    yield cluster
    stop(cluster)


@pytest.fixture(scope="session")
def client(cluster):
    with cluster.client() as client:
        yield client


FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def expected(path: Path, short=None, crop=None, size=None, filter="bilinear") -> Image.Image:
    """Pillow's pixels, by torchvision's rules of size and crop."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    if short is not None:
        to = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        image = image.resize(to, FILTERS[filter])
    if size is not None:
        image = image.resize(size, FILTERS[filter])
    if crop is not None:
        width, height = image.size
        left, top = round((width - crop) / 2), round((height - crop) / 2)
        image = image.crop((left, top, left + crop, top + crop))
    return image


def sha256(data) -> str:
    return hashlib.sha256(memoryview(data).cast("B")).hexdigest()


def private_bytes(pid: int | str = "self") -> int:
    """Memory that the process shares with nobody."""
    return sum(
        int(line.split()[1]) * 1024
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:"))
    )
