"""Real files: the pixels that Pillow gave, through a running node."""

import collections
import hashlib
import json
import os
from pathlib import Path

import framecache as fc
import pytest
from conftest import expected, jpeg, picture, sha256, start, stop

FILES_MIN = 120
GOOD_MIN = 96
GENERATED = 12


def corpus() -> list[dict] | None:
    """The manifest's rows; `None` if no corpus was named. One that was named has to be there."""
    named = os.environ.get("FRAMECACHE_CORPUS")
    if not named:
        return None
    manifest = Path(named) / "images/manifest.jsonl"
    assert manifest.exists(), f"FRAMECACHE_CORPUS is {named}, but {manifest} is absent"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    rows = [{**row, "path": manifest.parent / row["file"]} for row in rows]
    good = sum(row["expect"]["ok"] for row in rows)
    print(f"corpus: {len(rows)} files from {named} ({good} that Pillow reads)")
    assert len(rows) >= FILES_MIN and good >= GOOD_MIN
    return rows


def generated(folder: Path) -> list[dict]:
    rows = []
    for index in range(GENERATED):
        path = folder / f"{index}.jpg"
        settings = [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}][index % 4]
        data = jpeg(picture(200 + 37 * index, 520 - 23 * index, 1000 + index), **settings)
        bad = index % 6 == 5
        path.write_bytes(data[: len(data) // 2] if bad else data)
        if bad:
            rows.append({"file": path.name, "path": path, "expect": {"ok": False}})
            continue
        whole = expected(path)
        resized = [
            {
                "short_side": 128,
                "filter": filter,
                "rgb_sha256": hashlib.sha256(expected(path, short=128, filter=filter).tobytes()).hexdigest(),
            }
            for filter in ("bilinear", "bicubic")
        ]
        expect = {
            "ok": True,
            "width": whole.width,
            "height": whole.height,
            "rgb_sha256": hashlib.sha256(whole.tobytes()).hexdigest(),
            "resized": resized,
        }
        rows.append({"file": path.name, "path": path, "expect": expect})
    print(f"corpus: {len(rows)} generated")
    return rows


@pytest.fixture(scope="module")
def rows_and_cluster(tmp_path_factory):
    folder, state = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("corpus-state")
    rows = corpus()
    if rows is None:
        rows = generated(folder)
    else:
        for row in rows:
            (folder / row["file"]).write_bytes(row["path"].read_bytes())
    cluster = start(folder, state, nodes=2)  # so that a batch has two owners
    yield rows, cluster
    stop(cluster)


def decoded(rows, cluster, spec: fc.Image) -> dict[str, str]:
    """The hash of each picture, or the class of its error."""
    with cluster.client() as client:
        batch = client.images([cluster.uri(row["file"]) for row in rows], spec, on_error="fill")
    found = {}
    for index, row in enumerate(rows):
        found[row["file"]] = type(batch.errors[index]).__name__ if index in batch.errors else sha256(batch[index])
        if index not in batch.errors:
            assert batch.sizes[index] == (row["expect"]["width"], row["expect"]["height"]), row["file"]
    return found


def test_decoded_pixels_are_pillows(rows_and_cluster):
    """Every file that Pillow reads gives its bytes; every one that it refuses is an error of that file alone."""
    rows, cluster = rows_and_cluster
    found = decoded(rows, cluster, fc.Image())
    wrong, kinds = [], collections.Counter()
    for row in rows:
        kinds[row.get("kind", "jpeg")] += 1
        want = (
            row["expect"].get("rgb_sha256") if row["expect"]["ok"] else ("UndecodableError", "UnsupportedError", "TooLargeError")
        )
        if found[row["file"]] not in (want if isinstance(want, tuple) else (want,)):
            wrong.append((row["file"], found[row["file"]]))
    print("by kind:", ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    assert not wrong


def test_resized_pixels_are_pillows(rows_and_cluster):
    """So do the resized forms."""
    rows, cluster = rows_and_cluster
    good = [row for row in rows if row["expect"]["ok"]]
    specs = {(form["short_side"], form["filter"]) for row in good for form in row["expect"].get("resized", [])}
    assert specs
    wrong, checked = [], 0
    for short, filter in sorted(specs):
        found = decoded(good, cluster, fc.Image(short=short, filter=filter))
        for row in good:
            for form in row["expect"].get("resized", []):
                if (form["short_side"], form["filter"]) == (short, filter):
                    checked += 1
                    if found[row["file"]] != form["rgb_sha256"]:
                        wrong.append((row["file"], short, filter, found[row["file"]]))
    print(f"{checked} resized pictures compared")
    assert not wrong and checked >= len(good)


def test_sampled_frames_are_pillows(rows_and_cluster):
    """So are the frames of animations, all of a file asked for together. Of several pictures in a JPEG the first is served."""
    rows, cluster = rows_and_cluster
    sampled = [row for row in rows if row["expect"].get("frame_samples") and not row["kind"].startswith("jpeg-")]
    if len(rows) == GENERATED:
        pytest.skip("no corpus was named; test_video.py has animations of its own")
    wrong, checked = [], 0
    with cluster.client() as client:
        for row in sampled:
            samples = row["expect"]["frame_samples"]
            frames = client.video(cluster.uri(row["file"])).get_frames_at([sample["index"] for sample in samples])
            for frame, sample in zip(frames, samples, strict=True):
                checked += 1
                if sha256(frame) != sample["rgb_sha256"]:
                    wrong.append((row["file"], sample["index"]))
    print(f"{checked} frames of {len(sampled)} animations compared")
    assert not wrong and checked >= 35


def test_facts_are_pillows(rows_and_cluster):
    """Format, mode, size and frames without decoding; what Pillow refuses for its header has none, and is no error."""
    rows, cluster = rows_and_cluster
    wrong = []
    with cluster.client() as client:
        for row in rows:
            facts, want = client.stat(cluster.uri(row["file"])), row["expect"]
            if not want["ok"]:
                continue
            # Of several pictures behind one another in a JPEG the first is served.
            frames = 1 if want.get("format") == "MPO" else want.get("frames", facts.frames)
            told = (facts.width, facts.height, facts.mode, facts.frames)
            known = (want["width"], want["height"], want.get("mode", facts.mode), facts.frames and frames)
            form = {"MPO": "JPEG"}.get(want.get("format", "JPEG"), want.get("format", "JPEG"))
            if told != known or facts.format.upper() != form:
                wrong.append((row["file"], facts.format, told, known))
    assert not wrong
