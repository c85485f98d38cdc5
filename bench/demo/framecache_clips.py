#!/usr/bin/env python3
"""The same clips by Framecache's client. Prints its pass as one line of JSON.

usage: framecache_clips.py --node 127.0.0.1:4433 --ca FILE --bucket demo --clips FILE --keep FILE
                           [--batch 8] [--check 4] [--seed 17]

The node decodes, resizes and crops; a batch of clips is one call and arrives as uint8 [N, 16, 112, 112, 3]. CHECK clips, drawn by
SEED, are written to KEEP after the measured pass, for check_clips.py.
"""

import argparse
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import framecache as fc
import numpy as np
from meter import Meter, report

SPEC = fc.Image(short=128, crop=112)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", required=True)
    parser.add_argument("--ca")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--check", type=int, default=4)
    parser.add_argument("--seed", type=int, default=17)
    asked = parser.parse_args()

    client = fc.Client(asked.node, ca=asked.ca)
    wanted = json.loads(asked.clips.read_text())
    chosen = set(random.Random(asked.seed).sample(range(len(wanted)), min(asked.check, len(wanted))))
    kept: dict[str, np.ndarray] = {}

    meter = Meter()
    for first, clips in batches(client, asked.bucket, wanted, asked.batch):
        meter.batch(sum(len(frames) for frames in clips))
        for number in chosen & set(range(first, first + len(clips))):
            frames = clips[number - first]
            kept[f"pixels-{number}"], kept[f"times-{number}"] = np.array(frames.data), np.array(frames.pts_seconds)
    result = meter.stop()

    np.savez(asked.keep, **kept)
    report({**result, "requests": None})


def batches(client: fc.Client, bucket: str, wanted: list, size: int) -> Iterator[tuple[int, fc.Clips]]:
    """In order, each with its first clip's number; one batch is on its way while the caller holds this one."""
    pairs = [(f"s3://{bucket}/{key}", indices) for key, indices in wanted]
    groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(client.clips, group, SPEC) for group in groups[:1]]
        for number, following in enumerate([*groups[1:], None]):
            clips = coming.pop().result()
            if following:
                coming.append(pool.submit(client.clips, following, SPEC))
            yield number * size, clips


if __name__ == "__main__":
    main()
