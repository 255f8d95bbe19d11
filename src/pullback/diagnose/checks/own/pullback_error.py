"""PB001: an error that Pullback raised itself."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.transforms import defined
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.errors import GraphError, PullbackError
from pullback.language import say


class OwnError(Cause):
    """Pullback refused a call of its own: an argument, a seed, a graph or a function that does not fit.

    Every error of Pullback says what happened, what it got, and what to write instead; all of them are subclasses of
    ``pullback.errors.PullbackError`` and of the built-in exception that fits: ``ValueMismatch`` is a ``ValueError``,
    ``SeedError`` and ``GraphError`` are ``RuntimeError``.

    What stands here beside is the line of your program that made the call, and what it was called with. Catch the
    specific class rather than ``Exception`` where a fallback is wanted.
    """

    code = "PB001"
    title = "Pullback refused a call."
    raises = (PullbackError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        error = case.error
        if not isinstance(error, PullbackError):
            return None
        marks = [case.mark(say("called here"))] if case.site is not None else []
        for frame in reversed(case.frames[:-1][-3:]):
            marks.append(frame.mark(say("on the way here")))
        marks += _inside(case, error)
        return self.found(
            say("Got: {got}", got=error.got),
            marks,
            Fix(error.fix, "", (), "medium"),
            title=error.what,
            notes=[type(error).__name__],
        )

    @staticmethod
    def bad():
        import torch

        import pullback as pb

        x = torch.ones(3, requires_grad=True)
        pb.backward(x * 2, torch.ones(4))

    @staticmethod
    def good():
        import torch

        import pullback as pb

        x = torch.ones(3, requires_grad=True)
        pb.backward(x * 2, torch.tensor([1.0, 2.0, 3.0]))


def _inside(case: Case, error: PullbackError) -> list[Mark]:
    """The lines of the user's that made what was refused: where a graph ends, or what a function returns."""
    call = case.call
    if call is None or not call.args or case.site is None:
        return []
    if isinstance(error, GraphError) and "requires_grad=False" in error.got:
        marks = []
        for cut in found_in(case).cuts[:2]:
            off = cut.region_mark(say("nothing is recorded from here on"))
            marks += [*([off] if off is not None else []), cut.mark(say("the graph ends here"))]
        return marks
    where = defined(case.site.evaluated(call.args[0]))
    if where is None or any(each.code is where.code for each in case.frames):
        return []
    return where.marks(say("the function returns this"))[:2]
