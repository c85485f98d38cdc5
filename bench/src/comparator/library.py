#!/usr/bin/env python3
"""One process with one thread, one library, files in memory: what decoding costs without anything around it.

usage: library.py LIBRARY SHORT CROP FILE-OF-PATHS

Speaks by lines of JSON: first {"version": version, "files": n}, or {"missing": why} and nothing more; then for each line
{"times": n, "keep": path or null} n passes over all files, each decoded, made RGB, resized to a short side of SHORT and cropped
to the middle CROP, as torchvision's Resize and CenterCrop do. With a path, the pixels of the last pass are written there.
"""

import io
import json
import os
import sys
import time
from pathlib import Path

for threads in "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS":
    os.environ[threads] = "1"

LIBRARY, SHORT, CROP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def resized(width: int, height: int) -> tuple[int, int]:
    # torchvision, Resize: the long side is truncated, not rounded.
    return (SHORT, int(SHORT * height / width)) if width <= height else (int(SHORT * width / height), SHORT)


def corner(width: int, height: int) -> tuple[int, int]:
    # torchvision, CenterCrop: Python's round, half to even.
    return round((width - CROP) / 2), round((height - CROP) / 2)


def pillow(draft: bool):
    import PIL
    from PIL import Image

    def picture(data: bytes) -> Image.Image:
        with Image.open(io.BytesIO(data)) as image:
            size = resized(*image.size)
            if draft:  # the largest reduction in the transform that leaves no side below the result's
                image.draft("RGB", size)
            rgb = image.convert("RGB")
        left, top = corner(*size)
        return rgb.resize(size, Image.Resampling.BICUBIC).crop((left, top, left + CROP, top + CROP))

    return PIL.__version__, bytes, picture, Image.Image.tobytes


def opencv(interpolation: str, reduced: bool):
    import cv2
    import numpy as np

    cv2.setNumThreads(1)
    filtered = getattr(cv2, interpolation)

    def loaded(data: bytes):
        width, height = jpeg_size(data)
        to_width, to_height = resized(width, height)
        fitting = (shrink for shrink in (8, 4, 2) if width // shrink >= to_width and height // shrink >= to_height)
        shrink = next(fitting, None) if reduced else None
        return np.frombuffer(data, np.uint8), getattr(cv2, f"IMREAD_REDUCED_COLOR_{shrink}") if shrink else cv2.IMREAD_COLOR_RGB

    def picture(file):
        data, how = file
        rgb = cv2.imdecode(data, how)
        if how != cv2.IMREAD_COLOR_RGB:
            rgb = cv2.cvtColor(rgb, cv2.COLOR_BGR2RGB)
        size = resized(rgb.shape[1], rgb.shape[0])
        left, top = corner(*size)
        return cv2.resize(rgb, size, interpolation=filtered)[top : top + CROP, left : left + CROP]

    return cv2.__version__, loaded, picture, lambda rgb: rgb.tobytes()


def torchvision():
    import torch
    import torchvision
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import InterpolationMode, functional

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    def loaded(data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def picture(data: torch.Tensor) -> torch.Tensor:
        rgb = decode_jpeg(data, mode=ImageReadMode.RGB)
        rgb = functional.resize(rgb, [SHORT], interpolation=InterpolationMode.BICUBIC, antialias=True)
        return functional.center_crop(rgb, [CROP, CROP])

    return torchvision.__version__, loaded, picture, lambda rgb: rgb.permute(1, 2, 0).contiguous().numpy().tobytes()


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Width and height of the frame header: what a reduction is chosen by."""
    at = 2
    while at + 9 < len(data):
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        at += 2 + length
    raise ValueError("no frame header")


def say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


LIBRARIES = {
    "pillow": lambda: pillow(draft=False),
    "pillow-draft": lambda: pillow(draft=True),
    "opencv-area": lambda: opencv("INTER_AREA", reduced=False),
    "opencv-linear": lambda: opencv("INTER_LINEAR", reduced=False),
    "opencv-reduced": lambda: opencv("INTER_AREA", reduced=True),
    "torchvision": torchvision,
}


def main() -> None:
    try:
        version, loaded, picture, pixels = LIBRARIES[LIBRARY]()
    except (ImportError, OSError) as error:
        say({"missing": str(error)})
        return
    files = [loaded(Path(line).read_bytes()) for line in Path(sys.argv[4]).read_text().splitlines()]
    say({"version": version, "files": len(files)})
    for line in sys.stdin:
        asked = json.loads(line)
        begun = time.perf_counter()
        for _ in range(asked["times"]):
            if asked["keep"]:
                with Path(asked["keep"]).open("wb") as out:
                    for data in files:
                        out.write(pixels(picture(data)))
            else:
                for data in files:
                    picture(data)
        say({"seconds": time.perf_counter() - begun})


main()
