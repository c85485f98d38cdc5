"""Errors: classes that Python programs already catch, with the facts, across processes."""

import builtins
import copy
import pickle
import sys

import framecache as fc
import pytest
from framecache import errors

BUILTIN = {
    "NotFoundError": builtins.FileNotFoundError,
    "DeniedError": builtins.PermissionError,
    "UndecodableError": builtins.ValueError,
    "UnsupportedError": builtins.ValueError,
    "TooLargeError": builtins.ValueError,
    "InvalidError": builtins.ValueError,
    "OutOfRangeError": builtins.IndexError,
    "TimeoutError": builtins.TimeoutError,
    "UnavailableError": builtins.ConnectionError,
}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_class_is_an_oserror_that_travels(name):
    """Each is an OSError, and its closest builtin; pickling and copying lose nothing."""
    made = getattr(fc, name)("why", kind="k", cause="c", uri="s3://b/k", node="n", attempt=3, retry_after=0.5)
    assert isinstance(made, OSError) and isinstance(made, BUILTIN.get(name, OSError)) and isinstance(made, fc.FramecacheError)
    assert str(made) == "why" and made.errno is not None
    for other in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(other) is type(made) and str(other) == "why" and other.errno == made.errno
        assert (
            vars(other)
            == vars(made)
            == {
                "kind": "k",
                "cause": "c",
                "uri": "s3://b/k",
                "node": "n",
                "attempt": 3,
                "retry_after": 0.5,
            }
        )


def test_no_cluster_is_a_connection_error(tmp_path, ca_file):
    """Nobody there: a ConnectionError with the object's address, inside the deadline, after more than one try."""
    client = fc.Client("127.0.0.1:9", ca=ca_file, timeout=1)
    with pytest.raises(ConnectionError) as caught:
        client.read("s3://abc/x")
    assert caught.value.uri == "s3://abc/x" and caught.value.attempt >= 1 and caught.value.kind == "unavailable"


def test_wrong_trust_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"no-such-ca\.pem"):
        fc.Client("127.0.0.1:9", ca=tmp_path / "no-such-ca.pem").read("s3://abc/x")


@pytest.fixture
def ca_file(tmp_path):
    """A CA that signed nothing."""
    from conftest import ROOT

    return ROOT / "client/tests/ca.pem"


class Interrupting:
    """Raises where Python is run on our behalf: there a Ctrl-C may be noticed."""

    def __init__(self, raised):
        self.raised = raised

    def __getattr__(self, name):
        raise self.raised

    def __index__(self):
        raise self.raised


def test_an_interrupt_is_never_a_value(cluster, client, monkeypatch):
    """A Ctrl-C that arrives while the errors of a batch are made ends the call."""

    def interrupted(self, *arguments, **facts):
        raise KeyboardInterrupt

    uris = [cluster.uri("bad/cut.jpg"), cluster.uri("bad/good.jpg"), cluster.uri("absent.jpg")]
    monkeypatch.setattr(fc.NotFoundError, "__init__", interrupted)
    for on_error in ("fill", "skip", "raise"):
        with pytest.raises(KeyboardInterrupt if on_error != "raise" else (KeyboardInterrupt, fc.UndecodableError)):
            client.images(uris, fc.Image(size=(8, 8)), on_error=on_error)
    with pytest.raises(KeyboardInterrupt):
        client.read(cluster.uri("absent.jpg"))
    monkeypatch.undo()
    batch = client.images(uris, fc.Image(size=(8, 8)), on_error="fill")
    assert {index: type(error) for index, error in batch.errors.items()} == {0: fc.UndecodableError, 2: fc.NotFoundError}


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupt_passes_what_we_can_do_without(cluster, client, monkeypatch, raised):
    """Tracing that is broken costs no call, odd arguments get their sentence, and a Ctrl-C passes through both."""

    def ends(otherwise):
        return pytest.raises(otherwise if raised is RuntimeError else raised)

    with ends(TypeError):
        fc.Client(cluster.address, memory=Interrupting(raised()))
    with ends((TypeError, BufferError)):
        client.images([cluster.uri("bad/good.jpg")], fc.Image(size=(8, 8)), out=Interrupting(raised()))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", Interrupting(raised()))
    if raised is RuntimeError:
        assert client.stat(cluster.uri("bad/good.jpg")).format == "jpeg"
    else:
        with pytest.raises(raised):
            client.stat(cluster.uri("bad/good.jpg"))
