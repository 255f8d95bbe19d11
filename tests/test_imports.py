"""What ``import pullback`` brings: no module that torch did not bring, and the names it promises, documented."""

import inspect
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import pullback as pb

SOURCE = Path(pb.__file__).parents[1]
PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
import pullback
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def new_modules():
    """The modules that ``import pullback`` adds to those of ``import torch``, in a fresh interpreter."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-W", "error::pullback.errors.PullbackWarning", "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def top(name):
    return name.partition(".")[0]


def test_nothing_but_the_standard_library_comes_along(new_modules):
    strangers = {top(name) for name in new_modules} - {"pullback"} - sys.stdlib_module_names
    assert not strangers


@pytest.mark.parametrize("heavy", ["rich", "scipy", "click", "jinja2", "matplotlib", "sklearn", "pullback.testing"])
def test_what_is_heavy_waits_until_it_is_needed(new_modules, heavy):
    assert not [name for name in new_modules if name == heavy or name.startswith(heavy + ".")]


MODULES = {"combine", "errors", "seed"}


def public_names():
    """The names of the package that a reader would take for public: submodules only where they are promised."""
    return {
        name
        for name, value in vars(pb).items()
        if not name.startswith("_") and (not isinstance(value, types.ModuleType) or name in MODULES)
    }


def test_the_public_names_are_those_promised():
    assert set(pb.__all__) == public_names()
    assert pb.__all__ == sorted(pb.__all__)
    assert pb.__version__


def undocumented(name, value):
    """The names, from one public name on, of what has no docstring."""
    if isinstance(value, types.ModuleType):
        if not value.__doc__:
            yield name
        for inner, member in vars(value).items():
            here = getattr(member, "__module__", None) == value.__name__
            if here and not inner.startswith("_") and (inspect.isclass(member) or inspect.isroutine(member)):
                yield from undocumented(f"{name}.{inner}", member)
        return
    if not inspect.getdoc(value):
        yield name
    if inspect.isclass(value):
        for inner, member in inspect.getmembers(value, is_documentable):
            made_in = getattr(inspect.unwrap(getattr(member, "fget", member)), "__module__", None) or ""
            if top(made_in) == "pullback" and not inner.startswith("_") and not inspect.getdoc(member):
                yield f"{name}.{inner}"


def is_documentable(member):
    return inspect.isroutine(member) or isinstance(member, property)


@pytest.mark.parametrize("name", pb.__all__)
def test_every_public_name_and_method_is_documented(name):
    value = getattr(pb, name)
    assert not list(undocumented(name, value))


def test_the_types_that_methods_return_are_documented():
    J = pb.jacobian(torch.sin, torch.ones(2))
    for value in (J.plan(), J.T, J.inputs):
        assert not list(undocumented(type(value).__name__, type(value)))


def test_a_missing_docstring_would_be_found():
    class Bare:
        def method(self):
            pass

    Bare.method.__module__ = "pullback.somewhere"
    assert set(undocumented("Bare", Bare)) == {"Bare", "Bare.method"}
