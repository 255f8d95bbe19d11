"""The registry: a folder whose modules register themselves, imported on first look."""

import sys

import pytest

from pullback.errors import ValueMismatch
from pullback.registry import Registry

PACKAGE = "package_of_things_for_a_test"
MODULE = """
from {package} import THINGS, IMPORTED
IMPORTED.append({name!r})
THINGS.add({name!r}, {name!r}.upper())
"""


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """The registry of a package in which two modules register one thing each."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"from pullback.registry import Registry\nTHINGS, IMPORTED = Registry('thing', {PACKAGE!r}), []\n"
    )
    for name in ("pear", "apple"):
        (folder / f"{name}.py").write_text(MODULE.format(package=PACKAGE, name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__(PACKAGE).THINGS
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_every_module_of_the_package_is_imported_on_first_look(registry):
    imported = sys.modules[PACKAGE].IMPORTED
    assert imported == []
    assert registry.all() == {"apple": "APPLE", "pear": "PEAR"}
    assert imported == ["apple", "pear"]


def test_things_come_in_alphabetical_order_however_they_were_added(registry):
    registry.add("banana", 3)
    registry.add("aardvark", 4)
    assert list(registry.all()) == ["aardvark", "apple", "banana", "pear"]


def test_nothing_is_imported_twice(registry):
    assert registry.all() == registry.all()
    assert len(sys.modules[PACKAGE].IMPORTED) == 2


def test_what_is_added_later_is_there(registry):
    registry.all()
    registry.add("cherry", 5)
    assert registry.all()["cherry"] == 5


def test_a_name_that_is_taken_is_refused():
    registry = Registry("strategy", "pullback.strategies")
    registry.add("rows", "one")
    with pytest.raises(ValueMismatch, match="strategy 'rows'") as caught:
        registry.add("rows", "another")
    assert "'one' and 'another'" in caught.value.got
    assert caught.value.fix


def test_what_is_returned_is_a_copy(registry):
    registry.all().clear()
    assert len(registry.all()) == 2


def test_a_module_that_fails_to_import_says_so_again_on_the_next_look(registry, tmp_path):
    broken = tmp_path / PACKAGE / "broken.py"
    broken.write_text("raise ImportError('broken by a test')\n")
    for _ in range(2):
        with pytest.raises(ImportError, match="broken by a test"):
            registry.all()
