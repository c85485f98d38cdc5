"""Videos at the depth of their samples: `dtype="u16"`, through a running node, as the exact rule has them."""

import subprocess

import clips
import exact
import framecache as fc
import numpy
import pytest
from conftest import binary, start, stop
from videos import Served, copied, each

COMPARED_MIN = 40
TURNS = {90: 1, -90: -1, 180: 2, -180: 2, 270: -1, -270: 1}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The files by name, the cluster that serves them, and a client."""
    folder, state = tmp_path_factory.mktemp("depth"), tmp_path_factory.mktemp("depth-state")
    rows = exact.corpus()
    if rows is None:
        names = [clip.name for clip in clips.make(folder) if not clip.refused and not clip.damaged]
    else:
        rows = [row for row in rows if row["expect"]["ok"] and "thread_dependent" not in row["expect"]]
        copied(rows, folder)
        names = [row["file"] for row in rows if row["kind"] != "gif-as-video"]
    cluster = start(folder, state, nodes=1)
    with cluster.client() as client:
        yield [folder / name for name in names], cluster, client
    stop(cluster)


def first(path, index: int = 0) -> exact.Picture:
    return next(picture for number, picture in enumerate(exact.walk(path)) if number == index)


def test_numbers_are_the_definition(served):
    """Of every file: each number is the rule's with the largest sample for white; of bytes it is the byte itself."""
    paths, cluster, client = served
    forms, compared = set(), 0

    def check(path):
        nonlocal compared
        of, picture = Served.of(client, cluster, path.name), first(path)
        got = of.rgb(0, dtype="u16")
        assert got.dtype == numpy.uint16 and got.shape == (picture.height, picture.width, 3)
        assert (got == picture.rgb16()).all(), f"{(got != picture.rgb16()).sum()} of {got.size} numbers"
        if exact.depth_of(picture.form) == 8:
            assert (got == of.rgb(0)).all()
        forms.add(picture.form)
        compared += 1

    each(paths, check)
    print(f"{compared} frames of {', '.join(sorted(forms))}")
    assert compared >= COMPARED_MIN and {"yuv420p", "yuv420p10le"} <= forms


def deep(served):
    """A file of more than 8 bits, its video, and its first frame."""
    paths, cluster, client = served
    path = next(path for path in paths if exact.depth_of(first(path).form) > 8)
    return path, Served.of(client, cluster, path.name), first(path).rgb16()


def test_numbers_are_moved(served):
    """A box, a crop, a mirror, channels first: each the same numbers in other places."""
    _, of, whole = deep(served)
    height, width, _ = whole.shape
    top, left = (round((side - 16) / 2) for side in (height, width))
    for wanted, want in (
        ({"crop": 16}, whole[top : top + 16, left : left + 16]),
        ({"box": (3, 5, 20, 10)}, whole[5:15, 3:23]),
        ({"box": (3, 5, 20, 16), "crop": 8, "flip": True}, whole[9:17, 9:17][:, ::-1]),
        ({"layout": "chw"}, whole.transpose(2, 0, 1)),
        ({"layout": "chw", "crop": 16, "flip": True}, whole[top : top + 16, left : left + 16][:, ::-1].transpose(2, 0, 1)),
    ):
        assert (of.rgb(0, dtype="u16", **wanted) == want).all(), wanted


def test_numbers_are_turned(served):
    """`orientation="apply"` turns them by the display matrix, as it turns bytes."""
    paths, cluster, client = served
    turned = 0
    for path in paths:
        of = Served.of(client, cluster, path.name)
        if (of.video.rotation or 0) % 360 in (0, None) or of.video.rotation not in TURNS:
            continue
        for dtype in ("u8", "u16"):
            stored, upright = of.rgb(0, dtype=dtype), of.rgb(0, dtype=dtype, orientation="apply")
            assert (upright == numpy.rot90(stored, TURNS[of.video.rotation])).all(), path.name
        turned += 1
    assert turned >= 1


def test_what_computes_is_refused(served):
    """A resize is of 8 bits, and so are mode and alpha: beside 16 they are `unsupported`, before a node is asked."""
    _, of, _ = deep(served)
    for wanted in ({"short": 32}, {"size": (8, 8)}, {"max": 16}, {"mode": "gray"}, {"alpha": "keep"}, {"profile": "fast"}):
        with pytest.raises(fc.UnsupportedError, match="dtype=u16"):
            of.at([0], dtype="u16", **wanted)
    with pytest.raises(fc.InvalidError):
        of.at([0], dtype="u16", layout="planes")
    with pytest.raises(fc.UnsupportedError):
        of.at([0], dtype="f16")


def test_memory_is_shared(served):
    """numpy and DLPack take the numbers where they were received; `out=` receives into memory of the caller's, of that type."""
    _, of, whole = deep(served)
    frames = of.at([0, 0], dtype="u16")
    data = frames.data
    assert (data.dtype, data.shape, data.nbytes) == ("uint16", (2, *whole.shape), 2 * whole.nbytes)
    assert numpy.asarray(data).ctypes.data == numpy.from_dlpack(data).ctypes.data == data.address
    assert (numpy.from_dlpack(data)[1] == whole).all() and repr(data).startswith("<framecache.Tensor: uint16 [2, ")
    assert memoryview(data).format == "H" and memoryview(data).nbytes == data.nbytes
    out = numpy.ones((2, *whole.shape), numpy.uint16)
    assert of.at([0, 0], dtype="u16", out=out).data.address == out.ctypes.data and (out == whole).all()
    with pytest.raises((BufferError, ValueError)):
        of.at([0, 0], dtype="u16", out=numpy.ones((2, *whole.shape), numpy.uint8))


def test_command_line(served, tmp_path):
    """`.npy` has uint16; a PNG of them is refused."""
    path, _, whole = deep(served)
    _, cluster, _ = served
    program = binary("framecache", "FRAMECACHE_CLI")

    def run(file: str) -> int:
        command = [program, "get", cluster.uri(path.name), "--spec", "video?frames=0&dtype=u16", "-o", file]
        return subprocess.run(command, env=cluster.environment(), cwd=tmp_path, capture_output=True, timeout=60).returncode

    assert run("x.npy") == 0
    got = numpy.load(tmp_path / "x.npy")
    assert got.dtype == numpy.uint16 and (got == whole[None]).all()
    assert run("x.png") != 0
