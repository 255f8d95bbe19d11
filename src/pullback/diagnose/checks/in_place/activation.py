"""PB405: a module with inplace=True after an operation that keeps its result."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    failing_mark,
    name_of,
    of_kind,
    sentence,
    subjects,
    why_not_retain,
    without_inplace,
)
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class InplaceActivation(Cause):
    """`nn.ReLU(inplace=True)` (or another module with `inplace=True`) overwrites its input, which another layer needs.

    In place saves one tensor of memory, and is allowed only where nobody else needs the input: after a convolution,
    a linear layer or a batch norm it is fine, after `Sigmoid`, `Tanh`, `Softmax` or `exp`, or where the input is
    used a second time (a residual connection), it is not.

    Write `inplace=False` (the default) there. The memory that it saves is one activation.
    """

    code = "PB405"
    title = "A module with inplace=True overwrote a tensor that the operation before it had kept."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "activation")
        if found is None:
            return None
        name, module = found.thing if found.thing is not None else ("", None)
        kind = type(module).__name__
        edits, places = without_inplace(case, kind)
        marks = all_marks(case, found, say("{name}, a {kind} with inplace=True, ran here", name=name, kind=kind))
        made = [Mark.at(Place(file, line, ""), say("inplace=True is asked for here")) for file, line in places]
        if found.spot is None:
            marks = [failing_mark(case, found), *marks[1:]]
        return self.found(
            sentence(found)
            + " "
            + say("{name} is a {kind} with inplace=True: it wrote its own result over it.", name=name, kind=kind),
            [*marks, *made],
            Fix(
                say("Leave inplace=True out of {name}.", name=name),
                "\n".join(edit.text.strip() for edit in edits if edit.text),
                edits,
                "high" if edits and found.certain else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain()],
            wants=""
            if found.certain or case.traced
            else say("Which line changed {what} after it was kept?", what=name_of(found)),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.ELU(inplace=True))
        net(torch.randn(3, 2)).mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.ELU())
        net(torch.randn(3, 2)).mean().backward()
