"""Says what the definition of `exact` makes of the corpus's clips: a line a frame, its clip, its index and the SHA-256 of its RGB.

usage: video_rgb.py CORPUS/video >golden/video/rgb.txt      (the folder holds reference_rgb.py; needs `av` and `numpy`)
"""

import hashlib
import json
import sys
from pathlib import Path

import av

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
import reference_rgb  # noqa: E402

av.logging.set_level(av.logging.PANIC)
for line in (folder / "manifest.jsonl").read_text().splitlines():
    clip = json.loads(line)
    expect = clip["expect"]
    if not expect["ok"] or expect.get("thread_dependent") or expect["container"] == "gif":
        continue
    with av.open(str(folder / clip["file"])) as container:
        video = container.streams[expect["stream_index"]]
        video.codec_context.thread_count = 1
        for index, frame in enumerate(container.decode(video)):
            if index in (0, expect["frames"] // 2):
                print(clip["file"], index, hashlib.sha256(reference_rgb.rgb(frame).tobytes()).hexdigest())
