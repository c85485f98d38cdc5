#!/usr/bin/env python3
"""One process with one thread: Pillow's resize alone, of pictures that are in memory.

usage: resize.py FILE-OF-CASES

Speaks by lines of JSON: first its version; then for each line {"case": i, "times": n, "keep": path or null} the CPU-seconds of
this thread in n resizes of that case. With a path, the pixels of the last one are written there.
"""

import json
import sys
import time
from pathlib import Path

import PIL
from PIL import Image


def say(answer) -> None:
    print(json.dumps(answer), flush=True)


def picture(case: dict) -> Image.Image:
    mode = "L" if case["channels"] == 1 else "RGB"
    return Image.frombytes(mode, (case["width"], case["height"]), Path(case["source"]).read_bytes())


cases = json.loads(Path(sys.argv[1]).read_text())
pictures = [picture(case) for case in cases]
say(PIL.__version__)
for line in sys.stdin:
    asked = json.loads(line)
    image, case = pictures[asked["case"]], cases[asked["case"]]
    size, resample = tuple(case["to"]), Image.Resampling[case["filter"].upper()]
    window = case["window"]
    box = window and (window[0], window[1], window[0] + window[2], window[1] + window[3])
    begun = time.thread_time()
    for _ in range(asked["times"]):
        made = image.resize(size, resample)
        if box:
            made = made.crop(box)
            made.load()
    seconds = time.thread_time() - begun
    if asked["keep"]:
        Path(asked["keep"]).write_bytes(made.tobytes())
    say(seconds)
