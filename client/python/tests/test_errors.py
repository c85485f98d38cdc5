"""Errors: classes that Python programs already catch, with the facts, across processes."""

import builtins
import copy
import pickle

import pytest

import framecache as fc
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
        assert vars(other) == vars(made) == {
            "kind": "k", "cause": "c", "uri": "s3://b/k", "node": "n", "attempt": 3, "retry_after": 0.5,
        }


def test_no_cluster_is_a_connection_error(tmp_path, ca_file):
    """Nobody there: a ConnectionError with the object's address, inside the deadline, after more than one try."""
    client = fc.Client("127.0.0.1:9", ca=ca_file, timeout=1)
    with pytest.raises(ConnectionError) as caught:
        client.read("s3://abc/x")
    assert caught.value.uri == "s3://abc/x" and caught.value.attempt >= 1 and caught.value.kind == "unavailable"


def test_wrong_trust_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="no-such-ca.pem"):
        fc.Client("127.0.0.1:9", ca=tmp_path / "no-such-ca.pem").read("s3://abc/x")


@pytest.fixture
def ca_file(tmp_path):
    """A CA that signed nothing."""
    from conftest import ROOT

    return ROOT / "client/tests/ca.pem"
