"""What the faults about numbers that are not finite have in common."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from typing import ClassVar

from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.births import Birth, watch
from pullback.diagnose.evidence.numbers.find import call_of, mark_of, operand
from pullback.diagnose.values import Diagnosis, Mark, Subject
from pullback.language import say


class BirthFault(Fault):
    """A fault that is told where numbers first ceased to be finite.

    Attributes:
        kinds: The kinds of birth that it tells of.
    """

    kinds: ClassVar[frozenset[str]] = frozenset()

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        watch(audit).begin(audit, backward)

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        seen = watch(audit)
        seen.finish(audit, backward)
        if seen.birth is not None and seen.birth.kind in self.kinds:
            finding = self.tell(audit, backward, seen.birth)
            if finding is not None:
                audit.report(finding)
                seen.forget()

    def at_end(self, audit: Audit) -> None:
        watch(audit).release()
        watch(audit).forget()

    @abstractmethod
    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        """The finding."""


def written_at(audit: Audit, node: Node) -> tuple[Spot, ast.expr] | None:
    """Where the operation of a node is written, and the expression."""
    call = call_of(audit.tape, node)
    written = call.spot.node if call is not None and call.spot is not None else None
    return None if call is None or call.spot is None or written is None else (call.spot, written)


def operation_of(node: Node) -> str:
    """The name of the operation of a node, as the user writes it."""
    name = node.name().rpartition("::")[2].partition("Backward")[0]
    known = {"LinalgVectorNorm": "norm", "ToCopy": "the cast", "NativeLayerNorm": "layer_norm"}
    return known.get(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def marks_of(audit: Audit, backward: Backward, birth: Birth) -> list[Mark]:
    """The lines of a birth: where it was, what hid it, and where the pass was asked for."""
    what = say("this value is not finite") if birth.forward else say("the derivative of this is not finite here")
    marks = mark_of(audit, birth.node, what)
    if birth.selector is not None:
        marks += mark_of(audit, birth.selector, say("the value is hidden here; its derivative is not"))
    if backward.spot is not None:
        marks.append(backward.spot.mark(say("differentiated here")))
    return marks


def subjects_of(audit: Audit, birth: Birth) -> list[Subject]:
    """The leaves that got a gradient that is not finite."""
    return [audit.subject(leaf, "leaf", "a leaf") for leaf in birth.leaves[:3]]


def names_of(audit: Audit, birth: Birth) -> str:
    """What the user calls the first of these leaves."""
    return audit.name_of(birth.leaves[0], "a leaf") if birth.leaves else "the input"


def first_operand(audit: Audit, node: Node) -> tuple[Spot, ast.expr] | None:
    """What the operation of a node was applied to, as it is written on one line."""
    found = written_at(audit, node)
    given = operand(*found) if found is not None else None
    if found is None or given is None or given.lineno != given.end_lineno:
        return None
    return found[0], given
