#!/usr/bin/env python3
"""The same work by Framecache's client. Prints its pass as one line of JSON; exit status 1 when pixels differ from Pillow's.

usage: framecache_loader.py --node 127.0.0.1:4433 --ca FILE --bucket demo --keys FILE --originals FOLDER
                            [--batch 64] [--check 64] [--seed 17]

The node decodes, resizes and crops; a batch arrives as uint8 [N, 224, 224, 3]. After the measured pass CHECK pictures, drawn
by SEED, are read from the folder that the bucket shows, decoded by the plain loader's Pillow, and compared byte for byte.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import framecache as fc
import numpy as np
from meter import Meter, report

SPEC = fc.Image(short=256, crop=224)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", required=True)
    parser.add_argument("--ca")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--keys", type=Path, required=True, help="a file, one key a line")
    parser.add_argument("--originals", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--check", type=int, default=64)
    parser.add_argument("--seed", type=int, default=17)
    asked = parser.parse_args()

    client = fc.Client(asked.node, ca=asked.ca)
    keys = asked.keys.read_text().split("\n")[:-1]
    chosen = set(random.Random(asked.seed).sample(keys, min(asked.check, len(keys))))
    kept: dict[str, np.ndarray] = {}

    meter = Meter()
    for group, pixels in batches(client, asked.bucket, keys, asked.batch):
        meter.batch(len(pixels))
        kept.update((key, pixels[i].copy()) for i, key in enumerate(group) if key in chosen)
    result = meter.stop()

    different = differing(asked.originals, kept)
    report({**result, "requests": None, "checked": len(kept), "different": different})
    for key in different:
        print(f"pixels differ from Pillow's: s3://{asked.bucket}/{key}", file=sys.stderr)
    return 1 if different or len(kept) != len(chosen) else 0


def batches(client: fc.Client, bucket: str, keys: list[str], size: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """In order; one batch is on its way while the caller holds this one, as in the plain loader."""
    groups = [keys[start : start + size] for start in range(0, len(keys), size)]
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(client.images, [f"s3://{bucket}/{key}" for key in group], SPEC) for group in groups[:1]]
        for group, following in zip(groups, [*groups[1:], None], strict=True):
            batch = coming.pop().result()
            if following:
                coming.append(pool.submit(client.images, [f"s3://{bucket}/{key}" for key in following], SPEC))
            yield group, np.asarray(batch.data)


def differing(originals: Path, kept: dict[str, np.ndarray]) -> list[str]:
    # Imported only now: what the measured pass needs is no boto3 and no Pillow, and its memory should say so.
    from plain_loader import picture

    return [key for key, pixels in sorted(kept.items()) if not np.array_equal(pixels, picture((originals / key).read_bytes()))]


if __name__ == "__main__":
    sys.exit(main())
