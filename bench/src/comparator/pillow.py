#!/usr/bin/env python3
"""One process, Pillow alone, files in memory: what decoding costs without anything around it.

usage: pillow.py SHORT CROP FILE-OF-PATHS

Speaks by lines of JSON: first {"pillow": version, "files": n}; then for each line of input one pass over all files, each decoded,
made RGB, resized to a short side of SHORT (bicubic, antialiased) and cropped to the middle CROP, as torchvision's Resize and
CenterCrop do. A line that is a string names a file to which the pixels of that pass are written.
"""

import io
import json
import sys
import time
from pathlib import Path

import PIL
from PIL import Image

SHORT, CROP = int(sys.argv[1]), int(sys.argv[2])


def picture(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        rgb = image.convert("RGB")
    # torchvision, Resize: the long side is truncated, not rounded. CenterCrop: Python's round, half to even.
    width, height = rgb.size
    width, height = (SHORT, int(SHORT * height / width)) if width <= height else (int(SHORT * width / height), SHORT)
    left, top = round((width - CROP) / 2), round((height - CROP) / 2)
    return rgb.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + CROP, top + CROP))


def say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


files = [Path(line).read_bytes() for line in Path(sys.argv[3]).read_text().splitlines()]
say({"pillow": PIL.__version__, "files": len(files)})
for line in sys.stdin:
    keep = json.loads(line)
    begun = time.perf_counter()
    if keep:
        with open(keep, "wb") as out:
            for data in files:
                out.write(picture(data).tobytes())
    else:
        for data in files:
            picture(data)
    say({"seconds": time.perf_counter() - begun})
