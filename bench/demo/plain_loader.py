#!/usr/bin/env python3
"""The loader that one writes without a cache: threads, boto3, Pillow. Prints its pass as one line of JSON.

usage: plain_loader.py --endpoint http://127.0.0.1:9000 --bucket demo --keys FILE [--batch 64] [--threads 8]

Each picture is read from S3, decoded, made RGB, resized to a short side of 256 (bilinear, antialiased) and cropped to the
224 in its middle, as torchvision's Resize and CenterCrop do, and put into a batch of uint8 [N, 224, 224, 3].
"""

import argparse
import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import boto3
import numpy as np
from botocore import UNSIGNED
from botocore.config import Config
from meter import Meter, report
from PIL import Image

SHORT, CROP = 256, 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--keys", type=Path, required=True, help="a file, one key a line")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=8)
    asked = parser.parse_args()

    s3 = origin(asked.endpoint, asked.threads)
    requests: list[str] = []

    # Counted where they leave, so that a retry is a request too. Whoever answers here is taken for the server.
    def leaving(request, **_: object) -> None:
        requests.append(request.url)

    s3.meta.events.register("before-send.s3", leaving)
    keys = asked.keys.read_text().split("\n")[:-1]
    meter = Meter()
    with ThreadPoolExecutor(asked.threads) as pool:
        for batch in batches(keys, asked.batch, partial(sample, s3, asked.bucket), pool):
            meter.batch(len(batch))
    report({**meter.stop(), "requests": len(requests)})


def origin(endpoint: str, connections: int = 8):
    """boto3's client of the demo's origin, which takes unsigned requests."""
    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, max_pool_connections=connections)
    return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)


def batches(keys: list[str], size: int, load, pool: ThreadPoolExecutor) -> Iterator[np.ndarray]:
    """In order; the threads work on the next batch while the caller holds this one."""
    ahead: deque[list[Future]] = deque()
    for start in range(0, len(keys), size):
        ahead.append([pool.submit(load, key) for key in keys[start : start + size]])
        if len(ahead) == 2:
            yield np.stack([one.result() for one in ahead.popleft()])
    while ahead:
        yield np.stack([one.result() for one in ahead.popleft()])


def sample(s3, bucket: str, key: str) -> np.ndarray:
    return picture(s3.get_object(Bucket=bucket, Key=key)["Body"].read())


def picture(data: bytes) -> np.ndarray:
    """uint8 [224, 224, 3]"""
    with Image.open(io.BytesIO(data)) as image:
        rgb = image.convert("RGB")
    # torchvision, Resize: the long side is truncated, not rounded. CenterCrop: Python's round, half to even.
    width, height = rgb.size
    width, height = (SHORT, int(SHORT * height / width)) if width <= height else (int(SHORT * width / height), SHORT)
    left, top = round((width - CROP) / 2), round((height - CROP) / 2)
    resized = rgb.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + CROP, top + CROP)))


if __name__ == "__main__":
    main()
