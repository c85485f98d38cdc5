#!/usr/bin/env python3
"""Holds the clips that framecache_clips.py kept against PyAV and Pillow. Prints one line of JSON; exit status 1 if they differ.

usage: check_clips.py --node 127.0.0.1:4433 --ca FILE --bucket demo --clips FILE --originals FOLDER --kept FILE [--kept FILE ...]

Each clip is asked for again as it is stored. Its times are PyAV's, and its pixels within 3 levels, on average within 1.6, of
PyAV's RGB: swscale's conversion is off by as much, Framecache's is exact. What was kept is that, resized and cropped by Pillow,
byte for byte.
"""

import argparse
import json
import sys
from pathlib import Path

import framecache as fc
import numpy as np
from meter import report
from PIL import Image
from plain_clips import CROP, frames, shortened

LEVELS_MAX, LEVELS_MEAN_MAX = 3, 1.6
SECONDS_MAX = 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", required=True)
    parser.add_argument("--ca")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--originals", type=Path, required=True)
    parser.add_argument("--kept", type=Path, required=True, action="append")
    asked = parser.parse_args()

    client = fc.Client(asked.node, ca=asked.ca)
    wanted = json.loads(asked.clips.read_text())
    checked, different = 0, []
    for kept in map(np.load, asked.kept):
        numbers = sorted(int(name.removeprefix("pixels-")) for name in kept.files if name.startswith("pixels-"))
        whole = client.clips([(f"s3://{asked.bucket}/{wanted[number][0]}", wanted[number][1]) for number in numbers])
        for number, stored in zip(numbers, whole, strict=True):
            key, indices = wanted[number]
            found = frames((asked.originals / key).read_bytes(), indices)
            rows = zip(found, stored, kept[f"pixels-{number}"], kept[f"times-{number}"], strict=True)
            for (index, theirs), ours, pixels, seconds in rows:
                checked += 1
                if why := differs(theirs, np.asarray(ours), pixels, seconds):
                    different.append(f"{key} frame {index}")
                    print(f"s3://{asked.bucket}/{key} frame {index}: {why}", file=sys.stderr)
    report({"checked": checked, "different": different})
    return 1 if different else 0


def differs(theirs, ours: np.ndarray, pixels: np.ndarray, seconds: float) -> str | None:
    if abs(theirs.time - seconds) > SECONDS_MAX:
        return f"shown at {seconds} s, by PyAV at {theirs.time} s"
    apart = np.abs(ours.astype(int) - theirs.to_ndarray(format="rgb24"))
    if apart.max() > LEVELS_MAX or apart.mean() > LEVELS_MEAN_MAX:
        return f"up to {apart.max()} levels from PyAV's, {apart.mean():.2f} on average"
    width, height = shortened(theirs.width, theirs.height)
    left, top = round((width - CROP) / 2), round((height - CROP) / 2)
    small = Image.fromarray(ours).resize((width, height), Image.Resampling.BILINEAR)
    same = np.array_equal(pixels, np.asarray(small.crop((left, top, left + CROP, top + CROP))))
    return None if same else "not what Pillow makes of the stored frame"


if __name__ == "__main__":
    sys.exit(main())
