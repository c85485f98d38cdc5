#!/usr/bin/env python3
"""The clip loader that one writes without a cache: threads, boto3, PyAV. Prints its pass as one line of JSON.

usage: plain_clips.py --endpoint http://127.0.0.1:9000 --bucket demo --clips FILE [--batch 8] [--threads 8]

FILE holds clips as JSON: pairs of a key and the indices of its frames, ascending. Each video is read from S3; the loader seeks
to the last key frame before the first index, decodes from there, scales each wanted frame to a short side of 128, crops the 112
in its middle, and puts the clips into a batch of uint8 [N, 16, 112, 112, 3]. One thread decodes one clip, faster here than
threads within a clip; frames are scaled in YUV by swscale, faster than as RGB.
"""

import argparse
import io
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import av
import numpy as np
from meter import Meter, report
from plain_loader import batches, origin

SHORT, CROP = 128, 112


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=8)
    asked = parser.parse_args()

    s3 = origin(asked.endpoint, asked.threads)
    requests: list[str] = []

    # Counted where they leave, so that a retry is a request too. Whoever answers here is taken for the server.
    def leaving(request, **_: object) -> None:
        requests.append(request.url)

    s3.meta.events.register("before-send.s3", leaving)
    clips = json.loads(asked.clips.read_text())
    meter = Meter()
    with ThreadPoolExecutor(asked.threads) as pool:
        for batch in batches(clips, asked.batch, partial(sample, s3, asked.bucket), pool):
            meter.batch(batch.shape[0] * batch.shape[1])
    report({**meter.stop(), "requests": len(requests)})


def sample(s3, bucket: str, clip: tuple[str, list[int]]) -> np.ndarray:
    """uint8 [frames, 112, 112, 3]"""
    key, indices = clip
    data = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return np.stack([small(frame) for _, frame in frames(data, indices)])


def frames(data: bytes, indices: list[int]) -> list[tuple[int, av.VideoFrame]]:
    """The wanted frames, each with its index: known by its time, as those of a video of constant rate are."""
    wanted, found = set(indices), []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        start, step = stream.start_time or 0, 1 / (stream.average_rate * stream.time_base)
        container.seek(start + round(min(indices) * step), stream=stream)
        for frame in container.decode(stream):
            index = round((frame.pts - start) / step)
            if index in wanted:
                found.append((index, frame))
            if index >= max(indices):
                break
    if [index for index, _ in found] != indices:
        raise RuntimeError(f"frames {[index for index, _ in found]}, want {indices}")
    return found


def small(frame: av.VideoFrame) -> np.ndarray:
    width, height = shortened(frame.width, frame.height)
    left, top = round((width - CROP) / 2), round((height - CROP) / 2)
    scaled = frame.reformat(width, height, "rgb24", interpolation="BILINEAR").to_ndarray()
    return scaled[top : top + CROP, left : left + CROP]


def shortened(width: int, height: int) -> tuple[int, int]:
    """torchvision, Resize: the long side is truncated, not rounded."""
    return (SHORT, int(SHORT * height / width)) if width <= height else (int(SHORT * width / height), SHORT)


if __name__ == "__main__":
    main()
