#!/usr/bin/env python3
"""The same photographs in other formats, written by Pillow: the same photographs give the same files.

usage: formats.py FOLDER FILE-OF-PATHS

Writes FOLDER/KIND/00000.EXT, ... for every kind below and says {"kinds": [[kind, [names]], ...]} in one line of JSON.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

FOLDER = Path(sys.argv[1])


def with_alpha(image: Image.Image) -> Image.Image:
    # From clear on the left to opaque on the right: nothing that an encoder could leave out.
    image.putalpha(Image.linear_gradient("L").rotate(90).resize(image.size))
    return image


def gray16(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("I").point(lambda value: value * 257).convert("I;16")


def same(image: Image.Image) -> Image.Image:
    return image


# Kind: the end of the name, what is done to the RGB picture, how it is saved.
PREDICTOR = 317
KINDS = {
    "jpeg-progressive": ("jpg", same, {"quality": 90, "progressive": True}),
    "jpeg-gray": ("jpg", lambda image: image.convert("L"), {"quality": 90}),
    "jpeg-cmyk": ("jpg", lambda image: image.convert("CMYK"), {"quality": 90}),
    "png": ("png", same, {}),
    "png-alpha": ("png", with_alpha, {}),
    "png-palette": ("png", lambda image: image.quantize(256), {}),
    "png-gray16": ("png", gray16, {}),
    "webp": ("webp", same, {"quality": 80}),
    "webp-lossless": ("webp", same, {"lossless": True, "quality": 50, "method": 2}),
    "gif": ("gif", lambda image: image.quantize(256), {}),
    "bmp": ("bmp", same, {}),
    "tiff": ("tif", same, {}),
    "tiff-deflate": ("tif", same, {"compression": "tiff_adobe_deflate"}),
    "tiff-lzw": ("tif", same, {"compression": "tiff_lzw", "tiffinfo": {PREDICTOR: 2}}),
    "tiff-jpeg": ("tif", same, {"compression": "jpeg", "quality": 90}),
    "avif": ("avif", same, {"quality": 75, "speed": 8, "max_threads": 1}),
}


def written(numbered: tuple[int, str]) -> None:
    number, path = numbered
    with Image.open(path) as opened:
        rgb = opened.convert("RGB")
    for kind, (end, made, how) in KINDS.items():
        made(rgb.copy()).save(FOLDER / kind / f"{number:05d}.{end}", **how)


def main() -> None:
    paths = Path(sys.argv[2]).read_text().splitlines()
    for kind in KINDS:
        (FOLDER / kind).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(written, enumerate(paths)))
    names = {kind: [f"{kind}/{number:05d}.{end}" for number in range(len(paths))] for kind, (end, _, _) in KINDS.items()}
    print(json.dumps({"kinds": list(names.items())}))


main()
