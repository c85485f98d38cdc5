"""torch takes the memory as it is. Runs where torch is installed."""

import framecache as fc
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


def test_torch_shares_the_memory(cluster, client):
    """A batch, a picture, and `out=` a torch tensor: one address, no copy."""
    from framecache.torch import to_torch

    uris, spec = [cluster.uri("mix/0.jpg"), cluster.uri("mix/1.jpg")], fc.Image(short=64, crop=64)
    batch = client.images(uris, spec)
    whole, first = to_torch(batch), to_torch(batch[0])
    assert whole.data_ptr() == first.data_ptr() == batch.data.address
    assert whole.shape == (2, 64, 64, 3) and whole.dtype == torch.uint8
    out = torch.zeros((2, 64, 64, 3), dtype=torch.uint8)
    assert client.images(uris, spec, out=out).data.address == out.data_ptr() and torch.equal(out, whole)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_dataloader_workers_read(cluster, client, method):
    """A client inside a dataset works in a DataLoader's workers, whatever starts them."""
    uris = [cluster.uri(f"mix/{index}.jpg") for index in range(4)]
    client.images(uris, fc.Image(short=64, crop=64))
    loader = torch.utils.data.DataLoader(
        Pictures(cluster.client(), uris), batch_size=2, num_workers=2, multiprocessing_context=method, timeout=60
    )
    assert [tuple(batch.shape) for batch in loader] == [(2, 64, 64, 3)] * 2


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_dataloader_takes_whole_batches(cluster, client, method):
    """The README's loader: a batch a request, without a copy in the worker, and every pixel in order."""
    uris = [cluster.uri(f"mix/{index}.jpg") for index in range(6)]
    want = torch.from_dlpack(client.images(uris, fc.Image(short=64, crop=64)).data)
    pictures = Batches(cluster.client(), uris)
    for epoch in range(2):
        loader = torch.utils.data.DataLoader(
            pictures, batch_size=3, num_workers=2, collate_fn=as_it_is, multiprocessing_context=method, timeout=60
        )
        assert torch.equal(torch.cat(list(loader)), want), epoch


class Pictures(torch.utils.data.Dataset):
    def __init__(self, client, uris):
        self.client, self.uris = client, uris

    def __len__(self):
        return len(self.uris)

    def __getitem__(self, index):
        from framecache.torch import to_torch

        return to_torch(self.client.images([self.uris[index]], fc.Image(short=64, crop=64))[0])


class Batches(Pictures):
    def __getitems__(self, indices):
        batch = self.client.images([self.uris[index] for index in indices], fc.Image(short=64, crop=64))
        return torch.from_dlpack(batch.data)


def as_it_is(batch):
    return batch
