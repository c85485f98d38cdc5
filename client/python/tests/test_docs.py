"""Every example that is printed runs, and says what it is said to say."""

import doctest
import inspect

import framecache as fc
import numpy
import pytest
from conftest import ROOT
from framecache import _native, errors


def documented():
    """Every docstring of the package that holds an example."""
    yield "framecache", fc.__doc__
    for module in (_native, errors):
        for name, item in sorted(vars(module).items()):
            if not inspect.isclass(item):
                continue
            yield name, item.__doc__
            yield from (
                (f"{name}.{part}", value.__doc__) for part, value in sorted(vars(item).items()) if not part.startswith("__")
            )


EXAMPLES = {name: text for name, text in documented() if text and ">>>" in text}


def run(text: str, name: str, cluster, monkeypatch) -> None:
    for key, value in cluster.environment().items():
        monkeypatch.setenv(key, value)
    names = {"fc": fc, "numpy": numpy}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    result = runner.run(test, out=report.append)
    assert result.attempted and not result.failed, "".join(report)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_docstrings(name, cluster, monkeypatch):
    run(EXAMPLES[name], name, cluster, monkeypatch)


def test_guide(cluster, monkeypatch):
    run((ROOT / "docs/PYTHON.md").read_text().replace("```", "\n```"), "PYTHON.md", cluster, monkeypatch)


def test_every_public_name_is_explained():
    """Classes and their public members have docstrings."""
    bare = [name for name, text in documented() if not (text or "").strip()]
    assert not bare
    assert sorted(fc.__all__) == fc.__all__ and all(hasattr(fc, name) for name in fc.__all__)


def test_stubs_name_what_there_is():
    """The stub has each class and member of the native module, and no other."""
    import ast

    tree = ast.parse((ROOT / "client/python/framecache/_native.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            stub = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("__")}
            real = {name for name in vars(getattr(_native, node.name)) if not name.startswith("_")}
            assert stub == real, node.name
    classes = {name for name, item in vars(_native).items() if inspect.isclass(item)}
    assert classes == {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
