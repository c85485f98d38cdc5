"""Framecache: a distributed cache for training data.

A cluster between S3 and your loaders keeps raw objects and decoded pictures; this package asks it for both. Decoding happens in
the cluster, so that the training process holds no codec and no worker pool.

>>> import framecache as fc
>>> client = fc.Client("env")                     # or "host:4433"; nothing is connected yet
>>> batch = client.images(["s3://photos/pets/cat.jpg", "s3://photos/pets/dog.jpg"], fc.Image(short=256, crop=224))
>>> batch.data.shape                              # uint8; numpy, torch and JAX take it without a copy
(2, 224, 224, 3)

Importing it starts no thread and opens no socket; it is safe under fork, forkserver and spawn.
"""

from ._native import (
    Batch,
    Client,
    Clips,
    Entry,
    Frames,
    Image,
    Listing,
    Node,
    RandomResizedCrop,
    Raw,
    Stat,
    Tensor,
    Video,
    __version__,
)
from .errors import (
    BusyError,
    ChangedError,
    DeniedError,
    FramecacheError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    TimeoutError,
    TooLargeError,
    UnavailableError,
    UndecodableError,
    UnsupportedError,
)

__all__ = [
    "Batch",
    "BusyError",
    "ChangedError",
    "Client",
    "Clips",
    "DeniedError",
    "Entry",
    "FramecacheError",
    "Frames",
    "Image",
    "InvalidError",
    "Listing",
    "Node",
    "NotFoundError",
    "OutOfRangeError",
    "RandomResizedCrop",
    "Raw",
    "Stat",
    "Tensor",
    "TimeoutError",
    "TooLargeError",
    "UnavailableError",
    "UndecodableError",
    "UnsupportedError",
    "Video",
    "__version__",
]
