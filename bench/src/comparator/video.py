#!/usr/bin/env python3
"""One process, one library: what frames of a video file cost without anything around it.

usage: video.py LIBRARY THREADS SHORT CROP

Speaks by lines of JSON: first {"version": library and version}, or {"missing": why} and nothing more; then for each line
{"file": path, "frames": [indices], "keep": path or null} it opens the file, decodes those frames, makes them RGB, resizes
them to a short side of SHORT and crops the middle CROP, as torchvision's Resize (bilinear, antialiased) and CenterCrop do.
With a path, the pixels are written there, one frame behind the other in the order of the request. The decoder has THREADS
threads, and so has the resize.
"""

import bisect
import json
import os
import sys
import time
from pathlib import Path

LIBRARY, THREADS, SHORT, CROP = sys.argv[1], *map(int, sys.argv[2:5])

for threads in "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS":
    os.environ[threads] = str(THREADS)


def resized(width: int, height: int) -> tuple[int, int]:
    # torchvision, Resize: the long side is truncated, not rounded.
    return (SHORT, int(SHORT * height / width)) if width <= height else (int(SHORT * width / height), SHORT)


def corner(width: int, height: int) -> tuple[int, int]:
    # torchvision, CenterCrop: Python's round, half to even.
    return round((width - CROP) / 2), round((height - CROP) / 2)


def torchcodec(mode: str, inside: bool):
    import torch
    import torchcodec
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import CenterCrop, Resize

    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)

    def take(file: str, frames: list[int]) -> torch.Tensor:
        how = {"seek_mode": mode, "num_ffmpeg_threads": THREADS}
        if inside:
            width, height = resized(*sizes(file))
            how["transforms"] = [Resize((height, width)), CenterCrop((CROP, CROP))]
            return VideoDecoder(file, **how).get_frames_at(frames).data.permute(0, 2, 3, 1)
        data = VideoDecoder(file, **how).get_frames_at(frames).data
        width, height = resized(data.shape[3], data.shape[2])
        small = torch.nn.functional.interpolate(data, (height, width), mode="bilinear", antialias=True)
        left, top = corner(width, height)
        return small[:, :, top : top + CROP, left : left + CROP].permute(0, 2, 3, 1)

    known = {}

    def sizes(file: str) -> tuple[int, int]:
        if file not in known:
            metadata = VideoDecoder(file, seek_mode="approximate").metadata
            known[file] = metadata.width, metadata.height
        return known[file]

    return f"torchcodec {torchcodec.__version__.split('+')[0]}", take, lambda data: data.contiguous().numpy().tobytes()


def pyav():
    import av
    import numpy as np
    from PIL import Image

    def take(file: str, frames: list[int]):
        with av.open(file) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            stream.codec_context.thread_count = THREADS
            packets = [(packet.pts, packet.is_keyframe) for packet in container.demux(stream) if packet.pts is not None]
            shown, keys = sorted(pts for pts, _ in packets), sorted(pts for pts, is_key in packets if is_key)
            groups: dict[int, set[int]] = {}
            for frame in frames:
                groups.setdefault(keys[bisect.bisect(keys, shown[frame]) - 1], set()).add(shown[frame])
            found = {}
            for key, wanted in sorted(groups.items()):
                last = max(wanted)
                container.seek(key, stream=stream)
                for picture in container.decode(stream):
                    if picture.pts in wanted:
                        found[picture.pts] = small(Image, picture.to_ndarray(format="rgb24"))
                    if picture.pts >= last:
                        break
            return np.stack([found[shown[frame]] for frame in frames])

    return f"PyAV {av.__version__}", take, lambda data: data.tobytes()


def decord():
    import decord
    import numpy as np
    from PIL import Image

    def take(file: str, frames: list[int]):
        # In rising order: its answers to other orders are not always those frames.
        rising = sorted(set(frames))
        whole = decord.VideoReader(file, ctx=decord.cpu(0), num_threads=THREADS).get_batch(rising).asnumpy()
        found = {frame: small(Image, data) for frame, data in zip(rising, whole, strict=True)}
        return np.stack([found[frame] for frame in frames])

    return f"decord {decord.__version__}", take, lambda data: data.tobytes()


def small(image, rgb):
    import numpy as np

    size = resized(rgb.shape[1], rgb.shape[0])
    left, top = corner(*size)
    whole = image.fromarray(rgb).resize(size, image.Resampling.BILINEAR)
    return np.asarray(whole.crop((left, top, left + CROP, top + CROP)))


def say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


LIBRARIES = {
    "torchcodec-exact": lambda: torchcodec("exact", inside=False),
    "torchcodec-approximate": lambda: torchcodec("approximate", inside=False),
    "torchcodec-resized": lambda: torchcodec("approximate", inside=True),
    "pyav": pyav,
    "decord": decord,
}


def main() -> None:
    try:
        version, take, pixels = LIBRARIES[LIBRARY]()
    except (ImportError, OSError, RuntimeError) as error:
        say({"missing": (str(error).splitlines() or [type(error).__name__])[0][:120]})
        return
    say({"version": version})
    for line in sys.stdin:
        asked = json.loads(line)
        begun = time.perf_counter()
        taken = take(asked["file"], asked["frames"])
        if asked["keep"]:
            Path(asked["keep"]).write_bytes(pixels(taken))
        say({"seconds": time.perf_counter() - begun})


main()
