"""Pictures: Pillow's pixels, each slot on its own, in memory that nobody copies."""

import gc

import framecache as fc
import numpy
import pytest
from conftest import SIZES, expected

SPECS = [
    {"short": 256, "crop": 224},
    {"short": 64, "crop": 64, "filter": "bicubic"},
    {"size": (320, 200)},
    {"size": (320, 200), "crop": 101},
    {"crop": 200},
]


@pytest.mark.parametrize("settings", SPECS, ids=str)
def test_pixels_are_pillows(cluster, client, settings):
    """Every pixel of every picture is the one that Pillow and torchvision's geometry give."""
    names = [f"mix/{index}.jpg" for index in range(len(SIZES))] + ["mix/gray.jpg"]
    batch = client.images([cluster.uri(name) for name in names], fc.Image(**settings))
    for index, name in enumerate(names):
        want = numpy.asarray(expected(cluster.folder / name, **settings))
        assert batch[index].shape == want.shape
        assert numpy.array_equal(numpy.asarray(batch[index]), want), (name, settings)
    assert batch.data.shape == (len(names), *want.shape) and all(batch.valid) and batch.errors == {}
    assert batch.sizes == [*SIZES, (300, 300)] and batch.keys == [cluster.uri(name) for name in names]


@pytest.mark.parametrize("settings", [{}, {"short": 100}], ids=str)
def test_shapes_that_differ_are_named(cluster, client, settings):
    """Pictures of several shapes come each on its own; as one array they are refused, and the shapes told."""
    names = [f"mix/{index}.jpg" for index in range(3)]
    batch = client.images([cluster.uri(name) for name in names], fc.Image(**settings))
    for picture, name in zip(batch, names, strict=True):
        assert numpy.array_equal(numpy.asarray(picture), numpy.asarray(expected(cluster.folder / name, **settings)))
    with pytest.raises(ValueError) as caught:
        _ = batch.data
    assert all(str(list(picture.shape)) in str(caught.value) for picture in batch)


def test_slots_are_facts(cluster, client):
    """A slot says version and stored size; indexing is Python's."""
    batch = client.images([cluster.uri("mix/0.jpg"), cluster.uri("mix/1.jpg")], fc.Image(short=64, crop=64))
    assert batch[1].version == client.stat(cluster.uri("mix/1.jpg")).version != batch[0].version
    assert (batch[0].size, batch[0].orientation, batch[0].nbytes, len(batch[0])) == (SIZES[0], 1, 64 * 64 * 3, 64)
    assert numpy.array_equal(numpy.asarray(batch[-1]), numpy.asarray(batch[1])) and len(batch) == len(list(batch)) == 2
    for index in (2, -3):
        with pytest.raises(IndexError):
            batch[index]


def test_the_same_picture_twice(cluster, client):
    """Slots are independent, also when they ask for one picture."""
    batch = client.images([cluster.uri("mix/0.jpg")] * 5, "image?short=64&crop=64")
    assert all(numpy.array_equal(numpy.asarray(picture), numpy.asarray(batch[0])) for picture in batch)


def test_nothing_asked_is_an_empty_batch(client):
    batch = client.images([], fc.Image(size=(4, 5)))
    assert (len(batch), batch.data.shape, batch.valid, batch.keys) == (0, (0, 5, 4, 3), [], [])
    assert client.images([]).data.shape == (0, 0, 0, 3)


BAD = {"bad/cut.jpg": fc.UndecodableError, "bad/text.jpg": ValueError, "bad/absent.jpg": fc.NotFoundError}


def mixed(cluster):
    return [cluster.uri(name) for name in ("bad/cut.jpg", "bad/good.jpg", "bad/text.jpg", "mix/2.jpg", "bad/absent.jpg")]


def check_errors(batch, uris):
    assert sorted(batch.errors) == [0, 2, 4]
    for index, error in batch.errors.items():
        assert (
            isinstance(error, BAD[uris[index].split("/", 3)[3]])
            and error.uri == uris[index]
            and error.node
            and error.attempt >= 1
        )


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_raises_by_default(cluster, client, name):
    with pytest.raises(BAD[name]) as caught:
        client.images([cluster.uri("bad/good.jpg"), cluster.uri(name)], fc.Image(short=64, crop=64))
    assert caught.value.uri == cluster.uri(name)


@pytest.mark.parametrize("own", [False, True], ids=["received", "out"])
def test_skip_leaves_bad_pictures_out(cluster, client, own):
    """The batch is made without them: one array, in order, with the keys that remain."""
    uris, spec = mixed(cluster), {"short": 64, "crop": 64}
    out = numpy.full((5, 64, 64, 3), 7, "uint8") if own else None
    batch = client.images(uris, fc.Image(**spec), on_error="skip", out=out)
    check_errors(batch, uris)
    assert (batch.keys, batch.valid, len(batch)) == ([uris[1], uris[3]], [True, True], 2)
    data = numpy.asarray(batch.data)
    assert data.shape == (2, 64, 64, 3)
    for index, name in enumerate(("bad/good.jpg", "mix/2.jpg")):
        want = numpy.asarray(expected(cluster.folder / name, **spec))
        assert numpy.array_equal(data[index], want) and numpy.array_equal(numpy.asarray(batch[index]), want)
    if own:
        assert batch.data.address == out.ctypes.data and numpy.array_equal(out[:2], data)


@pytest.mark.parametrize("own", [False, True], ids=["received", "out"])
def test_fill_keeps_their_place(cluster, client, own):
    """Slots of bad pictures are zeros and not valid, also in memory that held something else."""
    uris, spec = mixed(cluster), {"short": 64, "crop": 64}
    out = numpy.full((5, 64, 64, 3), 7, "uint8") if own else None
    batch = client.images(uris, fc.Image(**spec), on_error="fill", out=out)
    check_errors(batch, uris)
    assert batch.valid == [False, True, False, True, False] and batch.keys == uris
    assert [size is None for size in batch.sizes] == [True, False, True, False, True]
    data = numpy.asarray(batch.data)
    assert data.shape == (5, 64, 64, 3) and not data[[0, 2, 4]].any() and batch[0].version is None
    assert numpy.array_equal(data[3], numpy.asarray(expected(cluster.folder / "mix/2.jpg", **spec)))


def test_all_bad_is_still_a_batch(cluster, client):
    uris = [cluster.uri("bad/cut.jpg"), cluster.uri("bad/absent.jpg")]
    assert client.images(uris, fc.Image(size=(4, 4)), on_error="fill").data.shape == (2, 4, 4, 3)
    assert client.images(uris, fc.Image(size=(4, 4)), on_error="skip").data.shape == (0, 4, 4, 3)
    assert client.images(uris, fc.Image(), on_error="skip").data.shape == (0, 0, 0, 3)
    assert client.images(uris, fc.Image(), on_error="fill")[0].shape == (0, 0, 3)


def test_wrong_bucket_is_never_passed_over(client):
    """What is no picture's fault is raised, whatever `on_error` says."""
    with pytest.raises(ValueError):
        client.images(["s3://no-such-bucket/x.jpg"], on_error="skip")


def test_lost_nodes_are_never_passed_over():
    from conftest import ROOT

    client = fc.Client("127.0.0.1:9", ca=ROOT / "client/tests/ca.pem", timeout=0.5)
    with pytest.raises(ConnectionError):
        client.images(["s3://abc/x.jpg"], on_error="skip")


def test_out_is_received_into(cluster, client):
    """`out=` is written directly: `batch.data` is that memory, for every kind of buffer, and only if it fits exactly."""
    uris, spec = [cluster.uri("mix/0.jpg"), cluster.uri("mix/3.jpg")], fc.Image(short=64, crop=60)
    want = numpy.asarray(client.images(uris, spec).data)
    pool = numpy.zeros((5, 60, 60, 3), "uint8")
    raw = bytearray(2 * 60 * 60 * 3)
    for out in (pool[1:3], memoryview(raw).cast("B", (2, 60, 60, 3))):
        batch = client.images(uris, spec, out=out)
        assert batch.data.address == numpy.asarray(out).ctypes.data and numpy.array_equal(numpy.asarray(out), want)
    assert not pool[[0, 3, 4]].any()
    with pytest.raises(BufferError):
        raw.extend(b"x")  # the batch still lends it
    del batch, out
    gc.collect()
    raw.extend(b"x")

    class Lends:
        """As a torch tensor does."""

        def numpy(self):
            return pool[3:]

    client.images(uris, spec, out=Lends())
    assert numpy.array_equal(pool[3:], want)


@pytest.mark.parametrize(
    ("out", "spec", "error"),
    [
        (numpy.zeros((1, 60, 60, 3), "uint8"), fc.Image(short=64, crop=60), ValueError),
        (numpy.zeros((2, 60, 60, 4), "uint8"), fc.Image(short=64, crop=60), ValueError),
        (numpy.zeros(2 * 60 * 60 * 3, "uint8"), fc.Image(short=64, crop=60), ValueError),
        (numpy.zeros((2, 60, 60, 3), "float32"), fc.Image(short=64, crop=60), BufferError),
        (numpy.zeros((2, 60, 60, 6), "uint8")[..., ::2], fc.Image(short=64, crop=60), BufferError),
        (numpy.asfortranarray(numpy.zeros((2, 60, 60, 3), "uint8")), fc.Image(short=64, crop=60), BufferError),
        (bytes(2 * 60 * 60 * 3), fc.Image(short=64, crop=60), BufferError),
        (numpy.zeros((2, 64, 64, 3), "uint8"), fc.Image(short=64), ValueError),
        ("no buffer", fc.Image(short=64, crop=60), TypeError),
    ],
    ids=["count", "channels", "flat", "float", "strided", "column-major", "read-only", "open spec", "str"],
)
def test_out_that_does_not_fit_is_refused(out, spec, error):
    """Before anything is asked of anybody."""
    with pytest.raises(error):
        fc.Client("127.0.0.1:9").images(["s3://abc/1", "s3://abc/2"], spec, out=out)


def test_nothing_is_copied(cluster, client):
    """Buffer protocol, numpy and DLPack all see the address that the pixels were received at; slots lie in the whole."""
    batch = client.images([cluster.uri(f"mix/{index}.jpg") for index in range(4)], fc.Image(short=64, crop=64))
    whole = batch.data
    assert numpy.asarray(whole).ctypes.data == numpy.from_dlpack(whole).ctypes.data == whole.address
    assert numpy.frombuffer(memoryview(whole).cast("B"), "uint8").ctypes.data == whole.address
    for index, picture in enumerate(batch):
        assert picture.address == whole.address + index * 64 * 64 * 3
        assert numpy.asarray(picture).ctypes.data == numpy.from_dlpack(picture).ctypes.data == picture.address
    array = numpy.from_dlpack(whole)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == ((4, 64, 64, 3), "uint8", True, True)
    array[0, 0, 0] = (1, 2, 3)
    assert numpy.asarray(batch[0])[0, 0].tolist() == [1, 2, 3]


def test_pixels_outlive_the_batch(cluster, client):
    """An array keeps the memory, whoever made it and in whatever order they go."""
    uris = [cluster.uri("mix/0.jpg"), cluster.uri("mix/1.jpg")]
    batch = client.images(uris, fc.Image(short=64, crop=64))
    want = numpy.asarray(batch.data).copy()
    arrays = [numpy.asarray(batch.data), numpy.from_dlpack(batch.data), numpy.asarray(batch[0]), numpy.from_dlpack(batch[1])]
    del batch
    gc.collect()
    client.images(uris[::-1], fc.Image(short=64, crop=64))
    assert numpy.array_equal(arrays[0], want) and numpy.array_equal(arrays[1], want)
    assert numpy.array_equal(arrays[2], want[0]) and numpy.array_equal(arrays[3], want[1])


def test_dlpack_capsules(cluster, client):
    """Both kinds of capsule, consumed or not; a copy is a copy; what cannot be had is refused."""
    tensor = client.images([cluster.uri("mix/0.jpg")], fc.Image(short=64, crop=64)).data
    assert tensor.__dlpack_device__() == (1, 0)
    assert '"dltensor"' in repr(tensor.__dlpack__()) and '"dltensor_versioned"' in repr(tensor.__dlpack__(max_version=(1, 0)))
    copy = numpy.from_dlpack(tensor, copy=True)
    assert copy.ctypes.data != tensor.address and numpy.array_equal(copy, numpy.asarray(tensor))
    for wrong in ({"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**wrong)


def test_unconsumed_capsules_free_their_memory(cluster, client):
    """10,000 capsules that nobody takes, of 8 MB pictures: the memory comes back with each."""
    from conftest import private_bytes

    def one():
        tensor = client.images([cluster.uri("mix/0.jpg")], fc.Image(size=(1600, 1600))).data
        for _ in range(500):
            tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 1))

    one()
    before = private_bytes()
    for _ in range(10):
        one()
    assert private_bytes() - before < 24 << 20
