"""Which code is the user's own: all but PyTorch's, ours, the standard library's and what is installed beside it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from types import FrameType

import torch

from pullback import errors
from pullback.errors import ArgumentError, ValueMismatch

INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Names in angle brackets are the user's (a notebook's cell, <stdin>, what exec runs), but for these.
GENERATED = ("<frozen ", "<eval_with_key>", "<attrs generated ", "<__array_function__ ")
EXECUTED = "<string>"
# The name of a function of ours that has the file and line of a caller of torch.
STAND_IN = "<pullback>"


def _home(file: str) -> str:
    """The folder of a file as the start of the paths in it."""
    return os.path.join(os.path.dirname(os.path.abspath(file)), "")  # noqa: PTH100, PTH118, PTH120


@cache
def _libraries() -> tuple[str, ...]:
    """What the paths of library files start with, beside the installed ones: the standard library, torch, ours."""
    return tuple(_home(str(file)) for file in (os.__file__, torch.__file__, errors.__file__))


def _places_of(package: str) -> tuple[str, ...]:
    """What the paths of the files of an installed package start with."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise ValueMismatch(
            "A package whose lines are to be recorded cannot be found.",
            got=f"packages has {package!r}",
            fix='Name it as it is imported, such as record(packages=("transformers",)).',
        )
    folders = tuple(os.path.join(each, "") for each in spec.submodule_search_locations or ())  # noqa: PTH118
    return folders or (str(spec.origin),)


def checked(packages: Sequence[str]) -> tuple[str, ...]:
    """Names of packages, in order and once each.

    Raises:
        ArgumentError: If they are not a sequence of names.
    """
    names = () if isinstance(packages, str) else tuple(packages)
    if isinstance(packages, str) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            "packages must be a sequence of names of packages.",
            got=f"packages={packages!r}",
            fix='record(packages=("mypackage",))',
        )
    return tuple(sorted(set(names)))


class UserFiles:
    """Tells the user's files from those of libraries.

    Args:
        packages: Installed packages that count as the user's.

    Raises:
        ValueMismatch: If there is no such package.
    """

    def __init__(self, packages: Sequence[str]) -> None:
        self._named = tuple(start for package in packages for start in _places_of(package))
        self._known: dict[str, bool] = {}

    def own(self, frame: FrameType) -> bool:
        """Whether a frame runs code of the user."""
        name = frame.f_code.co_filename
        if frame.f_code.co_name == STAND_IN:
            return False
        if name == EXECUTED:  # run by exec: by a library where its globals are a library's, as a dataclass's __init__
            name = frame.f_globals.get("__file__") or name
        return self.own_file(name)

    def own_file(self, name: str) -> bool:
        """Whether a file, by the name that its code gives it, is the user's."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._decided(name)
        return found

    def _decided(self, name: str) -> bool:
        if name.startswith("<"):
            return not name.startswith(GENERATED)
        path = os.path.abspath(name)  # noqa: PTH100 - resolving links would lose what a virtual environment is
        if path.startswith(self._named):
            return True
        return not path.startswith(_libraries()) and not any(part in path for part in INSTALLED)


@cache
def user_files(packages: tuple[str, ...]) -> UserFiles:
    """The user's files, the named packages among them; decided once for each file of the process."""
    return UserFiles(packages)
