"""What can go wrong, as classes that a caller can act on.

Every one is an ``OSError`` and, where Python has a closer name, that too: a missing object is a ``FileNotFoundError``, a broken
picture a ``ValueError``. All carry where it happened:

``kind``     the outcome's name, e.g. ``"not found"``
``cause``    why, in the words of whoever said so
``uri``      the object that was asked for, or ``None``
``node``     the node that answered, or ``None`` if none was reached
``attempt``  how many times it had been tried
"""

from __future__ import annotations

import builtins
import errno

__all__ = [
    "BusyError",
    "ChangedError",
    "DeniedError",
    "FramecacheError",
    "InvalidError",
    "NotFoundError",
    "OutOfRangeError",
    "TimeoutError",
    "TooLargeError",
    "UnavailableError",
    "UndecodableError",
    "UnsupportedError",
]


class FramecacheError(OSError):
    """Any failure of a request or of one item of a batch. Not of a subclass: a node broke the protocol; its log says more.

    >>> import framecache as fc
    >>> error = fc.FramecacheError("busy", uri="s3://photos/a.jpg", node="node-1", attempt=3)
    >>> error.uri, error.node, error.attempt
    ('s3://photos/a.jpg', 'node-1', 3)
    """

    _errno: int | None = errno.EIO

    def __init__(
        self,
        message: str = "",
        *,
        kind: str = "",
        cause: str = "",
        uri: str | None = None,
        node: str | None = None,
        attempt: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.errno = self._errno
        self.kind = kind
        self.cause = cause
        self.uri = uri
        self.node = node
        self.attempt = attempt
        self.retry_after = retry_after


class NotFoundError(FramecacheError, FileNotFoundError):
    """The origin has no such object."""

    _errno = errno.ENOENT


class DeniedError(FramecacheError, PermissionError):
    """The cluster's policy, or the origin, does not permit it."""

    _errno = errno.EACCES


class ChangedError(FramecacheError):
    """The object was replaced while it was read. Read it again: the new version is another object to the cache."""

    _errno = errno.ESTALE


class UndecodableError(FramecacheError, ValueError):
    """The bytes are no picture, or a broken one."""

    _errno = errno.EBADMSG


class UnsupportedError(FramecacheError, ValueError):
    """A format or decode spec that is known, but not supported."""

    _errno = errno.ENOTSUP


class TooLargeError(FramecacheError, ValueError):
    """Over a limit of the cluster, or over this client's ``memory``."""

    _errno = errno.EFBIG


class InvalidError(FramecacheError, ValueError):
    """The request or the configuration is wrong: an address, an argument, a bucket that the cluster does not have, the CA."""

    _errno = errno.EINVAL


class OutOfRangeError(FramecacheError, IndexError):
    """The range starts past the end of the object."""

    _errno = errno.ERANGE


class BusyError(FramecacheError):
    """The cluster was at its bound until the deadline. ``retry_after`` is its advice, in seconds."""

    _errno = errno.EAGAIN


class TimeoutError(FramecacheError, builtins.TimeoutError):
    """The deadline passed."""

    _errno = errno.ETIMEDOUT


class UnavailableError(FramecacheError, ConnectionError):
    """No node, or no origin, could be reached until the deadline."""

    _errno = errno.EHOSTUNREACH
