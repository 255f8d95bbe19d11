"""A registry that is filled by importing a folder: one file added is one thing added."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, TypeVar

from pullback.errors import ValueMismatch

T = TypeVar("T")


class Registry(Generic[T]):
    """Named things of one kind, each registered by the module that defines it.

    Args:
        kind: What the things are called, for messages: ``"strategy"``.
        package: The package whose modules register them; imported once, on first look.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._things: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str, thing: T) -> None:
        """Register a thing under its name.

        Raises:
            ValueMismatch: The name is taken.
        """
        if name in self._things:
            raise ValueMismatch(
                f"two things are registered as {self.kind} {name!r}",
                got=f"{self._things[name]!r} and {thing!r}",
                fix="give one of them another name",
            )
        self._things[name] = thing

    def all(self) -> dict[str, T]:
        """Everything registered, by name, in alphabetical order."""
        if not self._loaded:
            package = importlib.import_module(self.package)
            for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
                importlib.import_module(f"{self.package}.{module}")
            self._loaded = True
        return dict(sorted(self._things.items()))
