"""Every way to draw a picture, judged by Pillow itself: sizes, filters, boxes, crops, flips, modes, transparency, layout."""

import builtins
import os
import random

import framecache as fc
import numpy
import pytest
from conftest import SEED, picture, start, stop
from PIL import Image, ImageOps

SOAK = bool(os.environ.get("FRAMECACHE_SOAK"))
CASES = int(os.environ.get("FRAMECACHE_TEST_RENDITIONS", "20000" if SOAK else "400"))
FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
FORMATS = ["rgb.png", "rgba.png", "gray.png", "palette.png", "turned.jpg", "gray.jpg", "lossless.webp", "photo.bmp", "photo.tiff"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of many sizes in every format and mode, served."""
    folder, state = tmp_path_factory.mktemp("renditions"), tmp_path_factory.mktemp("renditions-state")
    chance = random.Random(SEED)
    names = []
    for number in range(4):
        for form in FORMATS:
            # Small ones too, where edges matter most.
            width, height = (
                chance.choice([chance.randint(1, 12), chance.randint(13, 90), chance.randint(91, 420)]) for _ in "wh"
            )
            made = picture(width, height, SEED + number)
            name = f"{number}-{form}"
            if form == "rgba.png":
                made.putalpha(picture(width, height, SEED + 100 + number).convert("L"))
            elif form.startswith("gray"):
                made = made.convert("L")
            elif form == "palette.png":
                made = made.quantize(64)
            settings = {}
            if form == "turned.jpg":
                exif = Image.Exif()
                exif[0x0112] = 1 + (number * 3 + 4) % 8
                settings = {"exif": exif.tobytes(), "quality": 90}
            elif form == "lossless.webp":
                settings = {"lossless": True}
            made.save(folder / name, **settings)
            names.append(name)
    picture(1603, 1201, SEED).save(folder / "large.jpg", quality=92)
    cluster = start(folder, state)
    yield cluster, names
    stop(cluster)


def drawn(chance: random.Random, size: tuple[int, int]) -> dict:
    """Settings that a picture of `size` (as it is seen) has a result for."""
    settings: dict = {"filter": chance.choice(FILTERS)}
    width, height = size
    if chance.random() < 0.4:
        x, y = chance.randrange(width), chance.randrange(height)
        width, height = chance.randint(1, width - x), chance.randint(1, height - y)
        settings["box"] = (x, y, width, height)
    kind = chance.choice(["keep", "short", "size", "max", "short and max"])
    if kind == "short":
        settings["short"] = chance.randint(1, 200)
    elif kind == "size":
        settings["size"] = (chance.randint(1, 300), chance.randint(1, 300))
    elif kind == "max":
        settings["max"] = chance.randint(1, 300)
    elif kind == "short and max":
        settings["short"] = chance.randint(1, 150)
        settings["max"] = chance.randint(settings["short"], 300)
    if chance.random() < 0.4:
        width, height = resized((width, height), **settings)
        settings["crop"] = chance.randint(1, min(width, height))
    settings["flip"] = chance.random() < 0.3
    settings["mode"] = chance.choice(["rgb", "rgb", "gray"])
    settings["alpha"] = chance.choice(["drop", "drop", "over:336699"] + (["keep"] if settings["mode"] == "rgb" else []))
    settings["layout"] = chance.choice(["hwc", "hwc", "chw"])
    return settings


def resized(whole, short=None, max=None, size=None, **others):
    """torchvision's `Resize(short, max_size=max)`, or no side longer than `max`."""
    width, height = whole
    if size is not None:
        return size
    if short is None:
        if max is None or builtins.max(width, height) <= max:
            return width, height
        return (
            (max, builtins.max(1, int(max * height / width)))
            if width >= height
            else (builtins.max(1, int(max * width / height)), max)
        )
    less, more = sorted((width, height))
    new_less, new_more = short, int(short * more / less)
    if max is not None and new_more > max:
        new_less, new_more = builtins.max(1, int(max * new_less / new_more)), max
    return (new_less, new_more) if width <= height else (new_more, new_less)


def pillows(
    path,
    orientation="ignore",
    filter="bilinear",
    box=None,
    crop=None,
    flip=False,
    mode="rgb",
    alpha="drop",
    layout="hwc",
    **sizes,
):
    """What Pillow makes of it."""
    with Image.open(path) as opened:
        image = opened.convert("RGB" if alpha == "drop" else "RGBA")
        if orientation == "apply":
            exif = opened.getexif()
            image = ImageOps.exif_transpose(with_exif(image, exif))
    if alpha.startswith("over:"):
        ground = Image.new("RGBA", image.size, (*bytes.fromhex(alpha[5:]), 255))
        image = Image.alpha_composite(ground, image).convert("RGB")
    if mode == "gray":
        image = image.convert("L")
    box = box or (0, 0, *image.size)
    x, y, width, height = box
    to = resized((width, height), **sizes)
    if sizes:
        image = image.resize(to, getattr(Image.Resampling, filter.upper()), box=(x, y, x + width, y + height))
    else:
        image = image.crop((x, y, x + width, y + height))
    if crop is not None:
        width, height = image.size
        left, top = round((width - crop) / 2), round((height - crop) / 2)
        image = image.crop((left, top, left + crop, top + crop))
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    array = numpy.asarray(image)
    array = array.reshape(*array.shape[:2], -1)
    return array.transpose(2, 0, 1) if layout == "chw" else array


def with_exif(image, exif):
    image = image.copy()
    image.getexif().update(exif)
    return image


def test_every_rendition_is_pillows(pictures):
    """Random settings on pictures of every format and mode: each byte is Pillow's."""
    cluster, names = pictures
    chance = random.Random(SEED)
    print(f"seed {SEED}, {CASES} cases")
    cases = []
    for _ in range(CASES):
        name = chance.choice(names)
        with Image.open(cluster.folder / name) as opened:
            size = opened.size
            turned = opened.getexif().get(0x0112, 1) >= 5
        orientation = chance.choice(["ignore", "apply"])
        seen = size[::-1] if turned and orientation == "apply" else size
        cases.append((name, {**drawn(chance, seen), "orientation": orientation}))
    wrong = []
    with cluster.client() as client:
        for name, settings in cases:
            got = numpy.asarray(client.images([cluster.uri(name)], fc.Image(**settings))[0])
            want = pillows(cluster.folder / name, **settings)
            if got.shape != want.shape or not numpy.array_equal(got, want):
                wrong.append((name, settings, got.shape, want.shape))
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, the first: {wrong[:3]}"


def test_tiles_come_from_one_decode(pictures):
    """Tiles are the resized picture, cut: row by row, one under the other."""
    cluster, names = pictures
    with cluster.client() as client:
        for name in names:
            with Image.open(cluster.folder / name) as opened:
                image = opened.convert("RGB")
            stacked = numpy.asarray(client.images([cluster.uri(name)], fc.Image(tiles=32, max=6, filter="bicubic"))[0])
            tiles = stacked.reshape(-1, 32, 32, 3)
            shapes = [(w, h) for n in range(1, 7) for w in range(1, n + 1) for h in range(1, n + 1) if w * h == n]
            fits = [(w, h) for w, h in shapes if w * h == len(tiles)]
            for columns, rows in fits:
                whole = numpy.asarray(image.resize((32 * columns, 32 * rows), Image.Resampling.BICUBIC))
                cut = [whole[32 * (n // columns) :][:32, 32 * (n % columns) :][:, :32] for n in range(columns * rows)]
                if all(numpy.array_equal(tile, piece) for tile, piece in zip(tiles, cut, strict=True)):
                    break
            else:
                pytest.fail(f"{name}: {stacked.shape} is no grid of the picture")
            aspect = image.width / image.height
            assert abs(columns / rows - aspect) == min(abs(w / h - aspect) for w, h in shapes), name


FAST = [
    {"short": 200},
    {"short": 200, "crop": 180, "flip": True},
    {"box": (301, 200, 900, 700), "size": (110, 80)},
    {"max": 700},
    {},
    {"mode": "gray", "size": (64, 64)},
]


@pytest.mark.parametrize("settings", FAST, ids=str)
def test_fast_is_close(pictures, settings):
    """Profile `fast` gives the same shapes, and of a JPEG nearly the same pixels; of other formats the same."""
    cluster, _ = pictures
    with cluster.client() as client:
        for name in ["large.jpg", "0-rgb.png"]:
            if name == "0-rgb.png" and ("box" in settings or "crop" in settings):
                continue
            exact, fast = (
                numpy.asarray(client.images([cluster.uri(name)], fc.Image(**settings, profile=profile))[0])
                for profile in ("exact", "fast")
            )
            assert exact.shape == fast.shape
            off = numpy.abs(exact.astype(int) - fast.astype(int))
            assert off.mean() < (4 if name == "large.jpg" else 1e-9), (name, off.mean())
