"""Raw reads: the file's bytes, in the memory they were received into; and what is known of objects."""

import framecache as fc
import numpy
import pytest


@pytest.mark.parametrize(
    ("start", "length"), [(0, None), (0, 10), (1048575, 2), (5, 2**21), (3145744, 1), (3145745, None), (10, 0), (3000000, 10**9)]
)
def test_bytes_are_the_files(cluster, client, start, length):
    """Any range, cut at the end of the object."""
    want = (cluster.folder / "raw/3m.bin").read_bytes()
    raw = client.read(cluster.uri("raw/3m.bin"), start, length)
    assert bytes(raw) == want[start : None if length is None else start + length]
    assert (raw.size, raw.start, len(raw)) == (len(want), start, len(bytes(raw))) and raw.version


def test_an_empty_object_is_empty(cluster, client):
    raw = client.read(cluster.uri("raw/empty.bin"))
    assert (bytes(raw), raw.size) == (b"", 0)


def test_memory_is_lent_and_read_only(cluster, client):
    raw = client.read(cluster.uri("raw/3m.bin"))
    view, array = memoryview(raw), numpy.frombuffer(raw, "uint8")
    assert view.readonly and not array.flags.writeable and array.ctypes.data == raw.address
    want = bytes(raw)
    del raw, view
    assert array.tobytes() == want


def test_failures_have_their_class(cluster, client):
    with pytest.raises(FileNotFoundError) as caught:
        client.read(cluster.uri("raw/absent.bin"))
    assert caught.value.uri == cluster.uri("raw/absent.bin") and caught.value.node
    with pytest.raises(IndexError):
        client.read(cluster.uri("raw/3m.bin"), start=10**9)
    with pytest.raises(ValueError):
        client.read("s3://no-such-bucket/x")
    with pytest.raises(fc.TooLargeError), cluster.client(memory="4MiB") as small:
        (cluster.folder / "raw/5m.bin").write_bytes(bytes(5 << 20))
        small.read(cluster.uri("raw/5m.bin"))


def test_listing_is_in_order_and_lazy(cluster, client):
    names = sorted(path.name for path in (cluster.folder / "same").iterdir())
    entries = list(client.list(cluster.uri("same/")))
    assert [entry.uri for entry in entries] == [cluster.uri(f"same/{name}") for name in names]
    assert [entry.size for entry in entries] == [(cluster.folder / "same" / name).stat().st_size for name in names]
    assert next(iter(client.list(cluster.uri("same/1")))).uri == cluster.uri("same/10.jpg")
    assert list(client.list(cluster.uri("none/"))) == []


def test_listed_addresses_name_their_objects(cluster, client):
    """Each entry reads as the bytes of its own key, whatever the key holds; a key that no address can name is left out."""
    keys = ["odd/a!/b", "odd/a%21/b", "odd/a%2521/b", "odd/a%25/b", "odd/b%21", "odd/\x01", "odd/\x1b[31m", "odd/sp ace+"]
    long = "odd/long/" + ("x" * 200 + "/") * 5 + "y" * 40
    for key in [*keys, long]:
        (cluster.folder / key).parent.mkdir(parents=True, exist_ok=True)
        (cluster.folder / key).write_bytes(key.encode())
    entries = list(client.list(cluster.uri("odd/")))
    assert [bytes(client.read(entry.uri)).decode() for entry in entries] == sorted(keys)
    for entry, key in zip(entries, sorted(keys), strict=True):
        if key.endswith("/b"):
            assert [under.uri for under in client.list(entry.uri[:-1])] == [entry.uri]


def test_objects_and_nodes_are_explained(cluster, client):
    facts = client.stat(cluster.uri("mix/0.jpg"))
    assert (facts.format, facts.width, facts.height, facts.orientation) == ("jpeg", 500, 375, 1)
    assert (facts.mode, facts.frames) == ("RGB", 1)
    assert (
        facts.size == (cluster.folder / "mix/0.jpg").stat().st_size
        and facts.version == client.read(cluster.uri("mix/0.jpg")).version
    )
    said = client.explain(cluster.uri("mix/0.jpg"), fc.Image(short=64))
    assert said and all(isinstance(value, str) for value in said.values())
    (node,) = client.nodes()
    assert node.state == "serving" and node.address.endswith(cluster.address.rsplit(":", 1)[1])


def test_many_threads_share_a_client(cluster, client):
    """Requests of several threads run side by side and never mix."""
    from concurrent.futures import ThreadPoolExecutor

    want = (cluster.folder / "raw/3m.bin").read_bytes()

    def one(index):
        start = index * 7919
        return bytes(client.read(cluster.uri("raw/3m.bin"), start, 65536)) == want[start : start + 65536]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))
