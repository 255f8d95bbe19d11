"""PB001: an error that Pullback raised itself."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.errors import PullbackError
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
