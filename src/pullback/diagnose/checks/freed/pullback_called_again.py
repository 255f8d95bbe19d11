"""PB309: the pullback of torch.func.vjp, called again after it freed its graph."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, earlier_passes
from pullback.diagnose.evidence.freed.report import call_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class PullbackCalledAgain(Cause):
    """The function that `torch.func.vjp` returned was called with `retain_graph=False`, and then once more.

    A pullback keeps its graph by default, so that it can be called with many cotangents. With `retain_graph=False` it
    frees the graph as it goes, and no later call can work.

    Leave `retain_graph=False` to the last call, or leave it out.
    """

    code = "PB309"
    title = (
        "The pullback from torch.func.vjp was called again after a call with retain_graph=False had freed its graph."
    )
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("_functorch/eager_transforms.py", "wrapper")
        if local is None or "cotangents" not in local or case.site is None:
            return None
        _, before = earlier_passes(case)
        earlier = next((each for each in reversed(before) if not each.retain_graph and each.spot is not None), None)
        marks = [case.mark(say("called again here"))]
        edits: tuple[Edit, ...] = ()
        spot = earlier.spot if earlier is not None else None
        if spot is not None:
            marks.append(spot.mark(say("this call freed the graph")))
        call = call_of(spot)
        if call is not None and spot is not None:
            keyword = next((each for each in call.keywords if each.arg == "retain_graph"), None)
            edits = (spot.source.replaced(keyword.value, "True"),) if keyword is not None else ()
        return self.found(
            say("A call of the pullback with retain_graph=False freed the graph that every further call needs."),
            marks,
            Fix(
                say("Leave retain_graph=False out, but for the last call."),
                spot.source.code(*edits).strip() if edits and spot else "",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if spot is not None else "medium",
        )

    @staticmethod
    def bad():
        import torch

        def model(w: torch.Tensor) -> torch.Tensor:
            return w.sin() * w

        pull = torch.func.vjp(model, torch.randn(2))[1]
        pull(torch.ones(2), retain_graph=False)
        pull(torch.zeros(2))

    @staticmethod
    def good():
        import torch

        def model(w: torch.Tensor) -> torch.Tensor:
            return w.sin() * w

        pull = torch.func.vjp(model, torch.randn(2))[1]
        pull(torch.ones(2))
        pull(torch.zeros(2))
