"""What the faults have in common that look at the first calls of each custom Function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.recorders.functions import Application, Functions
from pullback.diagnose.recorders.tape import Call


class OfFunctions(Fault):
    """A fault in a custom ``autograd.Function``: it is told once of a class."""

    level = "strict"
    hears = frozenset({"*"})

    def __init__(self) -> None:
        self._functions: Functions | None = None
        self._told: set[type] = set()

    @abstractmethod
    def applied(self, audit: Audit, kind: type, application: Application) -> bool:
        """After a call of a Function: whether something was found in it."""

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if self._functions is None:
            self._functions = Functions(lambda kind, application: self._called(audit, kind, application))
            self._functions.start()

    def at_end(self, audit: Audit) -> None:
        if self._functions is not None:
            self._functions.stop()

    def _called(self, audit: Audit, kind: type, application: Application) -> None:
        if not audit.over and kind not in self._told and self.applied(audit, kind, application):
            self._told.add(kind)
