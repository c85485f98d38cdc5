"""Specs and settings: what is written is what is meant, or is refused where it is written. No node is needed."""

import pickle

import framecache as fc
import pytest


def test_one_meaning_has_one_text():
    """Every spelling of a spec is the same value."""
    spec = fc.Image(short=256, crop=224, filter="bicubic")
    assert str(spec) == "image?short=256&crop=224&filter=bicubic"
    assert spec == fc.Image.parse("image?filter=bicubic&crop=224&short=256") and len({spec, fc.Image.parse(str(spec))}) == 1
    assert str(fc.Image()) == "image" and fc.Image(crop=32, filter="bicubic") == fc.Image(crop=32)
    assert (fc.Image(size=(640, 480)).output, fc.Image(short=3).output) == ((640, 480), None)
    assert pickle.loads(pickle.dumps(spec)) == spec and eval(repr(spec), {"framecache": fc}) == spec


@pytest.mark.parametrize(
    "settings", [{"short": 0}, {"short": -1}, {"crop": 70000}, {"filter": "cubic"}, {"short": 200, "crop": 224}]
)
def test_wrong_specs_are_refused(settings):
    """A spec that cannot be is a ValueError where it is made."""
    with pytest.raises(ValueError):
        fc.Image(**settings)


def test_known_but_unsupported_is_told_apart():
    with pytest.raises(fc.UnsupportedError):
        fc.Image.parse("image?depth=keep")


@pytest.mark.parametrize(
    "settings",
    [{"timeout": 0}, {"timeout": float("nan")}, {"timeout": 1e9}, {"memory": "1KiB"}, {"memory": "a lot"}, {"memory": "-1GiB"}],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ValueError):
        fc.Client("127.0.0.1:1", **settings)


def test_addresses_in_every_form(monkeypatch):
    """One address, several, a list, the environment; the default port is added."""
    assert "127.0.0.1:4433" in repr(fc.Client("127.0.0.1"))
    assert repr(fc.Client("a:1, b:2")) == repr(fc.Client(["a:1", "b:2"]))
    monkeypatch.setenv("FRAMECACHE_ADDR", "cache.example:99")
    assert "cache.example:99" in repr(fc.Client("env"))
    monkeypatch.delenv("FRAMECACHE_ADDR")
    with pytest.raises(ValueError, match="FRAMECACHE_ADDR"):
        fc.Client("env")
    with pytest.raises(TypeError):
        fc.Client(5)


def test_arguments_are_checked_before_anything_is_asked():
    client = fc.Client("127.0.0.1:1")
    for wrong in (["http://x/y"], ["s3://b"], ["s3://bucket/"]):
        with pytest.raises(ValueError):
            client.images(wrong)
    with pytest.raises(TypeError):
        client.images("s3://abc/one")
    with pytest.raises(TypeError):
        client.images([1])
    with pytest.raises(ValueError, match="on_error"):
        client.images([], on_error="ignore")
    with pytest.raises(ValueError, match="not negative"):
        client.read("s3://abc/x", start=-1)


def test_clients_pickle_and_keep_their_token_to_themselves():
    client = fc.Client("127.0.0.1:1", ca="/x/ca.pem", token="secret", timeout=5, memory="64MiB")
    again = pickle.loads(pickle.dumps(client))
    assert repr(again) == repr(client) and "secret" not in repr(client)
    assert again.__reduce__() == client.__reduce__()


def test_a_closed_client_says_so():
    client = fc.Client("127.0.0.1:1")
    with client:
        pass
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.read("s3://abc/x")
