"""What the causes have in common in which an operation had kept a tensor, and the program changed it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    instead,
    is_part,
    may_edit,
    name_of,
    of_kind,
    out_of_place,
    sentence,
    subjects,
    why_not_data,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class KeptAndChanged(Cause):
    """An operation kept a tensor for its backward, and the program changed it in place.

    Attributes:
        kept: What the tensor was to the operation: ``input`` or ``result``.
    """

    says = MODIFIED
    kept: ClassVar[str]

    @abstractmethod
    def why(self) -> str:
        """Why the operation needs it."""

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, self.kept)
        if found is None:
            return None
        name = name_of(found)
        edits = out_of_place(found.form, part=is_part(found.tensor))
        sure = bool(edits) and found.certain and may_edit(found)
        ask = not found.certain and not case.traced
        return self.found(
            sentence(found) + " " + self.why(),
            all_marks(case, found, say("{name} is changed in place here", name=name)),
            Fix(
                say("Make a new tensor instead of changing {name}, or change a clone of it.", name=name),
                instead(found, edits),
                edits,
                "high" if sure else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain(), why_not_data()],
            apart="" if found.certain else say("the line that changed it"),
            wants=say("Which line changed {name} after it was kept?", name=name) if ask else "",
        )
