"""The exact rule of RGB, which the other tests judge by, is itself the one that is written down."""

import importlib.util
import itertools
import os
import random
from pathlib import Path

import exact
import numpy
import pytest
from conftest import SEED

FORMS = ["yuv444p", "yuv422p", "yuv420p", "yuv440p", "yuv411p", "yuvj420p", "yuva420p", "yuv420p10le", "yuv444p12le"]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("form", "full", "matrix"), list(itertools.product(FORMS, (False, True), (1, 2, 5, 9))))
def test_numpy_gives_what_fractions_give(form, full, matrix, deep):
    """Each pixel is the fraction of its own luma and its block's chroma, rounded half up; odd sizes included; bytes, and deep."""
    dice = numpy.random.default_rng(SEED)
    depth, (rows, columns) = exact.depth_of(form), exact.BLOCKS[form.removeprefix("yuv").lstrip("aj")[:3]]
    kind = numpy.uint8 if depth == 8 else numpy.dtype("<u2")
    height, width = 9, 13
    small = (-(-height // rows), -(-width // columns))
    planes = tuple(dice.integers(0, 1 << depth, size, kind) for size in ((height, width), small, small))
    white = (1 << depth) - 1 if deep else 255
    got = exact.rgb(form, planes, full=full, matrix=matrix, white=white)
    for y, x in itertools.product(range(height), range(width)):
        u, v = (int(plane[y // rows, x // columns]) for plane in planes[1:])
        want = exact.defined(int(planes[0][y, x]), u, v, depth=depth, full=full, matrix=matrix, white=white)
        assert tuple(got[y, x]) == want, (y, x)


def test_known_colours():
    """Black, white, gray and primaries in limited BT.601, as every table of them has it."""
    for (y, u, v), want in {
        (16, 128, 128): (0, 0, 0),
        (235, 128, 128): (255, 255, 255),
        (126, 128, 128): (128, 128, 128),
        (81, 90, 240): (254, 0, 0),
        (145, 54, 34): (0, 255, 1),
        (41, 240, 110): (0, 0, 255),
    }.items():
        assert exact.defined(y, u, v, depth=8, full=False, matrix=2) == want


def test_numpy_gives_what_the_corpus_program_gives():
    """On real frames of every pixel format, too, where a corpus was named."""
    rows = exact.corpus()
    if rows is None:
        pytest.skip("no corpus was named")
    path = Path(os.environ["FRAMECACHE_CORPUS"]) / "video/reference_rgb.py"
    spec = importlib.util.spec_from_file_location("reference_rgb", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    compared, forms = 0, set()
    for row in rows:
        if row["expect"]["ok"]:
            last = random.Random(SEED).choice(row["expect"]["samples"][:2])["index"]
            frame, _ = next(itertools.islice(exact.frames(row["path"]), last, None))
            assert (exact.picture(frame).rgb() == program.rgb(frame)).all(), row["file"]
            compared += 1
            forms.add(frame.format.name)
    print(f"{compared} frames compared, of {', '.join(sorted(forms))}")
    assert compared >= 54 and len(forms) >= 7
