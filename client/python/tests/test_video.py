"""Animations: every frame is Pillow's, whatever is asked for beside it."""

import io
import pickle
import random

import framecache as fc
import numpy
import pytest
from conftest import SEED, picture
from PIL import Image

FORMS = {"ball.gif": {}, "ball.png": {"lossless": True}, "ball.webp": {"lossless": True}, "pages.tiff": {}}
FRAMES = 9


@pytest.fixture(scope="module")
def animations(cluster):
    """Animations of several formats, and each one's frames by Pillow."""
    frames = []
    for number in range(FRAMES):
        frame = picture(96, 96, SEED).copy()
        frame.paste(picture(20 + 3 * number, 30, SEED + number), (7 * number, 50 - 4 * number))
        frames.append(frame)
    found = {}
    for name, settings in FORMS.items():
        path = cluster.folder / "moving" / name
        path.parent.mkdir(exist_ok=True)
        frames[0].save(path, save_all=True, append_images=frames[1:], **settings)
        with Image.open(path) as opened:
            assert opened.n_frames == FRAMES
            found[name] = []
            for number in range(FRAMES):
                opened.seek(number)
                found[name].append(opened.convert("RGB"))
    return found


@pytest.mark.parametrize("name", FORMS)
def test_frames_are_pillows(cluster, client, animations, name):
    """In any order, repeated, resized; with and without the frames between."""
    video = client.video(cluster.uri(f"moving/{name}"))
    assert (video.width, video.height, video.format) == (96, 96, name.split(".")[1])
    for indices in ([5], list(range(FRAMES)), [8, 0, 3, 3, 1], random.Random(SEED).sample(range(FRAMES), 4)):
        frames = video.get_frames_at(indices)
        assert frames.indices == indices and len(frames) == len(indices)
        want = numpy.stack([numpy.asarray(animations[name][index]) for index in indices])
        assert (numpy.asarray(frames.data) == want).all()
    small = video.get_frames_at([7, 2], short=40, filter="lanczos")
    for place, index in enumerate([7, 2]):
        want = animations[name][index].resize((40, 40), Image.Resampling.LANCZOS)
        assert (numpy.asarray(small[place]) == numpy.asarray(want)).all()
    assert (numpy.asarray(client.images([cluster.uri(f"moving/{name}")])[0]) == numpy.asarray(animations[name][0])).all()


def test_frames_that_are_not_there_are_index_errors(cluster, client, animations):
    """Whether the number of frames is known before they are decoded or not."""
    known, unknown = (client.video(cluster.uri(f"moving/{name}")) for name in ("ball.png", "ball.gif"))
    assert known.num_frames == FRAMES and unknown.num_frames is None
    assert (numpy.asarray(known.get_frames_at([-1])[0]) == numpy.asarray(animations["ball.png"][-1])).all()
    for video in (known, unknown):
        with pytest.raises(IndexError, match="9"):
            video.get_frames_at([0, FRAMES])
    with pytest.raises(IndexError):
        known.get_frames_at([-10])
    with pytest.raises(ValueError, match="not known"):
        unknown.get_frames_at([-1])
    with pytest.raises(ValueError, match="not by both"):
        known.get_frames_at([0], fc.Image(), short=5)
    out = numpy.empty((2, 9, 9, 3), "uint8")
    assert known.get_frames_at([1, 0], size=(9, 9), out=out).data.address == out.ctypes.data
    with pytest.raises(fc.NotFoundError):
        client.video(cluster.uri("moving/none.gif"))


def test_a_break_costs_the_frames_behind_it(cluster, client, animations):
    """A file that is cut gives what lies before the cut."""
    data = (cluster.folder / "moving/ball.gif").read_bytes()
    (cluster.folder / "moving/cut.gif").write_bytes(data[: len(data) * 2 // 3])
    video = client.video(cluster.uri("moving/cut.gif"))
    assert (numpy.asarray(video.get_frames_at([3, 0]).data) == numpy.stack([animations["ball.gif"][i] for i in (3, 0)])).all()
    with pytest.raises(fc.UndecodableError):
        video.get_frames_at([0, FRAMES - 1])


def test_random_crops_are_pillows(cluster, client):
    """Each picture is cut as the draw of its address says, and as Pillow cuts it; the whole picture held or not."""
    crop = fc.RandomResizedCrop((64, 48), flip=0.5, filter="bicubic", seed=SEED)
    uris = [cluster.uri(f"same/{index:02}.jpg") for index in range(24)]
    drawn = [set(), set()]
    for epoch in range(2):
        batch = client.images(uris, crop.at(epoch))
        assert batch.data.shape == (24, 48, 64, 3) and crop.shape == (48, 64, 3)
        for place, uri in enumerate(uris):
            spec = str(crop.at(epoch).draw(uri, width=288, height=272))
            drawn[epoch].add(spec)
            values = dict(part.split("=") for part in spec.removeprefix("image?").split("&"))
            x, y, width, height = map(int, values["box"].split(","))
            with Image.open(io.BytesIO((cluster.folder / f"same/{place:02}.jpg").read_bytes())) as opened:
                want = opened.convert("RGB").resize((64, 48), Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
            if values.get("flip"):
                want = want.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            assert (numpy.asarray(batch[place]) == numpy.asarray(want)).all(), (uri, spec)
        # From now on the whole pictures are held decoded, and cut without a decoder.
        client.images(uris)
    assert len(drawn[0]) == len(drawn[1]) == 24 and not drawn[0] & drawn[1]
    assert pickle.loads(pickle.dumps(crop.at(3))) == crop.at(3) != crop.at(2)


def test_random_crops_keep_bad_pictures_apart(cluster, client):
    """A picture that is broken, absent or replaced by text costs its own slot."""
    uris = [cluster.uri(name) for name in ("bad/cut.jpg", "bad/good.jpg", "bad/none.jpg", "bad/text.jpg")]
    batch = client.images(uris, fc.RandomResizedCrop(32, seed=1), on_error="fill")
    assert batch.valid == [False, True, False, False]
    assert [type(batch.errors[slot]).__name__ for slot in (0, 2, 3)] == ["UndecodableError", "NotFoundError", "UndecodableError"]
    for wrong in ({"scale": (0, 1)}, {"ratio": (2, 1)}, {"flip": 2.0}, {"crop": 5}, {"short": 9}):
        with pytest.raises((ValueError, fc.InvalidError)):
            fc.RandomResizedCrop(32, **wrong)


@pytest.mark.parametrize("disposal", [[2, 0, 2, 0, 2, 0], [3, 0, 0, 0, 0, 0], [1, 2, 0, 0, 3, 0], [0, 3, 2, 1, 0, 2]])
def test_disposal_is_pillows(cluster, client, disposal):
    """A disposal stays until another is named, a frame of which nothing is said names none; indices may lie beyond a table."""
    frames = [Image.new("RGB", (16, 16)) for _ in disposal]
    for number, frame in enumerate(frames):
        frame.paste((40 * number, 255 - 40 * number, 90), (number, number, number + 6, number + 6))
    few = [picture(20, 20, SEED + number).quantize(colours) for number, colours in enumerate((32, 4, 4, 32, 4))]
    files = {
        "plain.gif": (frames, {"disposal": disposal, "optimize": False}),
        "timed.gif": (frames, {"disposal": disposal, "duration": 30}),
        "beyond.gif": (few, {"disposal": 2, "transparency": 7, "duration": 20, "optimize": False}),
    }
    for name, (made, settings) in files.items():
        path = cluster.folder / "moving" / f"{disposal[0]}{disposal[1]}{disposal[2]}-{name}"
        path.parent.mkdir(exist_ok=True)
        made[0].save(path, save_all=True, append_images=made[1:], **settings)
        with Image.open(path) as opened:
            count = opened.n_frames
            want = []
            for number in range(count):
                opened.seek(number)
                want.append(numpy.asarray(opened.convert("RGB")))
        got = client.video(cluster.uri(f"moving/{path.name}")).get_frames_at(list(range(count)))
        assert [number for number in range(count) if (numpy.asarray(got[number]) != want[number]).any()] == [], path.name


def test_what_would_be_other_pixels_is_refused(cluster, client):
    """Alpha that only a later page has, gray AVIF of limited range with alpha, boxes that no spec names, what is no picture."""
    folder = cluster.folder / "moving"
    folder.mkdir(exist_ok=True)
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    Image.new("RGB", (4, 4), (9, 9, 9)).save(folder / "later.tiff", save_all=True, append_images=[clear])
    pages = client.video(cluster.uri("moving/later.tiff"))
    assert pages.get_frames_at([0], alpha="keep").data.shape == (1, 4, 4, 4)
    for alpha in ("keep", "over:ffffff"):
        with pytest.raises(fc.UnsupportedError):
            pages.get_frames_at([1], alpha=alpha)
    noise = Image.frombytes("RGBA", (50, 50), random.Random(SEED).randbytes(10_000))
    noise.save(folder / "gray.avif", quality=80, subsampling="4:0:0", range="limited")
    with pytest.raises(fc.UnsupportedError):
        client.images([cluster.uri("moving/gray.avif")])
    Image.new("RGB", (70_000, 2)).save(folder / "long.png")
    for epoch in range(4):
        with pytest.raises(fc.UnsupportedError):
            client.images([cluster.uri("moving/long.png")], fc.RandomResizedCrop(8, epoch=epoch))
    with pytest.raises(fc.UndecodableError):
        client.video(cluster.uri("bad/text.jpg"))
