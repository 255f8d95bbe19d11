"""What the faults of derivatives that are zero for want of a graph have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.functional import Functional, Lost, functional_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis


class FunctionalFault(Fault):
    """A fault of a derivative that the functional interfaces gave as zero."""

    hears = frozenset({"requires_grad_"})

    def __init__(self) -> None:
        self._joined: Functional | None = None

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        heard = functional_of(audit)
        if self._joined is not heard:
            self._joined = heard
            self.join(audit, heard)
        heard.met(call)

    def join(self, audit: Audit, heard: Functional) -> None:
        """Ask to be told."""

        def lost(seen: Lost) -> None:
            finding = self.tell(audit, seen)
            if finding is not None:
                audit.report(finding)

        heard.lost.append(lost)

    def at_end(self, audit: Audit) -> None:
        functional_of(audit).stop()
        self._joined = None

    @abstractmethod
    def tell(self, audit: Audit, seen: Lost) -> Diagnosis | None:
        """The finding."""
