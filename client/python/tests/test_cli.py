"""The command line against a running node."""

import io
import json
import subprocess
from pathlib import Path

import numpy
import pytest
from conftest import binary, expected
from PIL import Image


@pytest.fixture
def run(cluster, tmp_path):
    program = binary("framecache", "FRAMECACHE_CLI")

    def run(*arguments, code=0):
        done = subprocess.run(
            [program, *map(str, arguments)], env=cluster.environment(), cwd=tmp_path, capture_output=True, timeout=60
        )
        assert done.returncode == code, (done.returncode, done.stderr.decode())
        return done

    return run


def test_get_raw(run, cluster, tmp_path):
    """The file's bytes, to a file or through a pipe, whole or a range."""
    want = (cluster.folder / "raw/3m.bin").read_bytes()
    run("get", cluster.uri("raw/3m.bin"), "-o", "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == want == run("get", cluster.uri("raw/3m.bin")).stdout
    assert run("get", cluster.uri("raw/3m.bin"), "--range", "1048570-1048580").stdout == want[1048570:1048580]
    assert run("get", cluster.uri("raw/3m.bin"), "--range", "3145740-").stdout == want[3145740:]
    assert run("get", cluster.uri("raw/empty.bin"), "-o", "-").stdout == b""


def test_get_decoded(run, cluster, tmp_path):
    """Pillow's pixels, as PNG and as NPY, by extension or by word."""
    spec = "image?short=64&crop=60"
    want = numpy.asarray(expected(cluster.folder / "mix/0.jpg", short=64, crop=60))
    for arguments, load in (
        (["-o", "x.png"], lambda: Image.open(tmp_path / "x.png")),
        (["-o", "x.npy"], lambda: numpy.load(tmp_path / "x.npy")),
        (["-o", "x", "--format", "npy"], lambda: numpy.load(tmp_path / "x")),
    ):
        run("get", cluster.uri("mix/0.jpg"), "--spec", spec, *arguments)
        got = numpy.asarray(load())
        assert got.dtype == "uint8" and numpy.array_equal(got, want), arguments
    assert numpy.array_equal(
        numpy.asarray(Image.open(io.BytesIO(run("get", cluster.uri("mix/0.jpg"), "--spec", spec).stdout))), want
    )


def test_contact_sheet(run, cluster, tmp_path):
    """Pictures stand in their places; a broken one is gray with a cross, named on standard error, and costs exit code 1."""
    done = run("get", cluster.uri("bad/"), "--contact-sheet", "s.png", "--spec", "image?size=64x64", "--columns", 2, code=1)
    sheet = numpy.asarray(Image.open(tmp_path / "s.png"))
    assert sheet.shape == (2 * 68 + 4, 2 * 68 + 4, 3)  # cut, good, text: two rows of two
    assert numpy.array_equal(sheet[4:68, 72:136], numpy.asarray(expected(cluster.folder / "bad/good.jpg", size=(64, 64))))
    assert set(numpy.unique(sheet[4:68, 4:68])) == {96, 160} == set(numpy.unique(sheet[72:136, 4:68]))
    told = done.stderr.decode()
    assert cluster.uri("bad/cut.jpg") in told and cluster.uri("bad/text.jpg") in told and "2 of 3 failed" in told
    run("get", cluster.uri("same/"), "--contact-sheet", "t.png", "--limit", 7)
    assert Image.open(tmp_path / "t.png").size == (7 * 132 + 4, 132 + 4)


def tiles(path: Path, columns: int, count: int, size: tuple[int, int]) -> list[numpy.ndarray]:
    """The pictures of a sheet, in order."""
    sheet, (width, height) = numpy.asarray(Image.open(path)), size
    assert sheet.shape == (-(-count // columns) * (height + 4) + 4, columns * (width + 4) + 4, 3)
    corners = ((4 + place // columns * (height + 4), 4 + place % columns * (width + 4)) for place in range(count))
    return [sheet[top : top + height, left : left + width] for top, left in corners]


def test_contact_sheet_of_frames(run, cluster, tmp_path):
    """Of any selection, in its order, on a sheet that fits a screen; the spec stands before or behind the address."""
    import painted

    uri = cluster.uri("fun/roll.mp4")
    # By rate and range, number, time, index; every frame.
    for spec, numbers in (
        ("video?fps=5&from=0.4&to=1.4", [10, 15, 20, 25, 30]),
        ("video?uniform=3", [0, 29, 59]),
        ("video?at=0.5,0.1", [12, 2]),
        ("video?frames=7,-1,7", [7, 59, 7]),
        ("video", list(range(60))),
    ):
        run("get", spec, uri, "--contact-sheet", "s.png")
        # Frames of 160 pixels are no larger on the sheet than they are.
        shown = tiles(tmp_path / "s.png", min(10, len(numbers)), len(numbers), (160, 96))
        assert [painted.number_of(tile) for tile in shown] == numbers, spec
    run("get", uri, "--spec", "video?uniform=5&short=240", "--contact-sheet", "s.png")
    assert len(tiles(tmp_path / "s.png", 4, 5, (400, 240))) == 5
    run("get", "video?uniform=5&size=64x64", uri, cluster.uri("fun/ball.gif"), "--contact-sheet", "s.png", "--columns", 2, code=1)
    assert {96, 160} == set(numpy.unique(tiles(tmp_path / "s.png", 2, 6, (64, 64))[5]))
    run("get", "video?frames=2,0", cluster.uri("fun/ball.gif"), "--contact-sheet", "s.png")
    assert len(tiles(tmp_path / "s.png", 2, 2, (96, 96))) == 2


def test_frames_into_a_file(run, cluster, tmp_path):
    """The frames of a selection for `numpy.load`, one of them as PNG."""
    import painted

    uri = cluster.uri("fun/roll.mp4")
    run("get", uri, "--spec", "video?fps=5&from=0.4&to=1.4&short=48", "-o", "x.npy")
    assert [painted.number_of(frame) for frame in numpy.load(tmp_path / "x.npy")] == [10, 15, 20, 25, 30]
    run("get", uri, "--spec", "video?at=0.5", "-o", "x.png")
    assert painted.number_of(numpy.asarray(Image.open(tmp_path / "x.png"))) == 12


def test_wrong_selections_say_what_to_do(run, cluster, tmp_path):
    """And leave no file."""
    uri = cluster.uri("fun/roll.mp4")
    for arguments, code, words in (
        (["video?at=9", uri, "--contact-sheet", "s.png"], 1, "outside of the video's [0, 2.4) s"),
        (["video?frames=60", uri, "--contact-sheet", "s.png"], 1, "want -60 to 59"),
        (
            ["video", uri, "--contact-sheet", "s.png", "--limit", "59"],
            2,
            "raise --limit, or ask for fewer, as in video?uniform=59",
        ),
        (["video?from=1&to=1", uri, "--contact-sheet", "s.png"], 2, "no frame"),
        (["video?uniform=2", cluster.uri("raw/3m.bin"), "--contact-sheet", "s.png"], 1, "not a picture"),
        (["video?uniform=2&mode=gray", uri, "--contact-sheet", "s.png"], 2, "colour"),
        (["video?nope=2", uri, "--contact-sheet", "s.png"], 2, "nope"),
        (["video?uniform=2", "--contact-sheet", "s.png"], 2, "want an object behind it"),
        (["video?uniform=2", uri, "--spec", "image", "-o", "x.png"], 2, "neither --spec"),
        (["video?uniform=2", uri, "-o", "x.png"], 2, "a PNG holds one frame, not 2"),
        ([uri, "--spec", "video?frames=1,2", "-o", "x.png"], 2, "a PNG holds one frame, not 2"),
        ([uri, "--format", "npy", "-o", "x"], 2, "--format"),
    ):
        done = run("get", *arguments, code=code)
        assert words in done.stderr.decode() and not done.stdout, (arguments, done.stderr)
        assert not list(tmp_path.iterdir()), arguments


def test_ls(run, cluster):
    names = sorted(path.name for path in (cluster.folder / "same").iterdir())
    uris = [cluster.uri(f"same/{name}") for name in names]
    assert run("ls", cluster.uri("same/")).stdout.decode().split() == uris
    assert run("ls", cluster.uri("same/"), "--limit", 3).stdout.decode().split() == uris[:3]
    rows = [json.loads(line) for line in run("ls", "--json", cluster.uri("same/")).stdout.splitlines()]
    assert [row["uri"] for row in rows] == uris and all(row["version"] for row in rows)
    first = run("ls", "-l", cluster.uri("same/")).stdout.decode().splitlines()[0].split()
    assert int(first[0]) == rows[0]["size"] and first[-1] == uris[0]


def test_status_and_explain(run, cluster):
    (node,) = json.loads(run("status", "--json").stdout)["nodes"]
    assert node["state"] == "serving" and node["status"]
    assert node["id"] in run("status").stdout.decode()
    uri = cluster.uri("mix/1.jpg")
    run("get", uri, "-o", "-")
    said = json.loads(run("explain", uri, "--json").stdout)
    assert said and all(name in run("explain", uri).stdout.decode() for name in said)
    assert json.loads(run("explain", uri, "--spec", "image?short=64", "--json").stdout)


def test_failures_say_what_to_do(run, cluster):
    """One sentence, a hint, and the documented exit code."""
    for arguments, code, word in (
        (["get", cluster.uri("raw/absent.bin"), "-o", "-"], 1, "not found"),
        (["get", cluster.uri("bad/cut.jpg"), "--spec", "image", "-o", "-"], 1, "undecodable"),
        (["get", cluster.uri("raw/3m.bin"), "--range", "99999999-", "-o", "-"], 1, "out of range"),
        (["ls", "s3://no-such-bucket/"], 2, "no-such-bucket"),
        (["ls", "nonsense"], 2, "s3://bucket/"),
        (["--addr", "127.0.0.1:9", "--timeout", "0.5", "status"], 3, "hint"),
    ):
        done = run(*arguments, code=code)
        assert word in done.stderr.decode() and not done.stdout, (arguments, done.stderr)


def test_full_standard_output_is_an_exit_code(cluster):
    """Code 1 and a sentence, for every command that prints."""
    program = binary("framecache", "FRAMECACHE_CLI")
    uri = cluster.uri("raw/3m.bin")
    for line in (
        ["status"],
        ["status", "--json"],
        ["explain", uri],
        ["explain", uri, "--json"],
        ["ls", cluster.uri("")],
        ["get", uri, "-o", "-"],
    ):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run([program, *line], env=cluster.environment(), stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1 and b"cannot write -" in done.stderr, (line, done)


def test_a_reader_that_leaves_ends_it(cluster):
    """`framecache get … | head` ends quietly, as every tool does."""
    program = binary("framecache", "FRAMECACHE_CLI")
    process = subprocess.Popen(
        [program, "get", cluster.uri("raw/3m.bin"), "-o", "-"],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(10)
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait(60) == -13 and told == b""
