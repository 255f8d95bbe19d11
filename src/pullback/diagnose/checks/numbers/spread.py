"""PBA325: the standard deviation of one element."""

from __future__ import annotations

from dataclasses import replace

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import BirthFault, marks_of, names_of, operation_of, subjects_of
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class Spread(BirthFault):
    """The standard deviation of a single element is 0 / 0, and so is its derivative.

    ``std`` and ``var`` divide by N - 1 (``correction=1``). With one element, the last batch of an epoch say, or a
    dimension of size 1, that is a division by zero; torch warns of the degrees of freedom, once.

    Use ``correction=0`` (``unbiased=False``), and take the root of the variance plus a small number:
    ``(x.var(dim, correction=0) + 1e-5).sqrt()``, as normalisation layers do; or leave such batches out
    (``drop_last=True``). ``std + eps`` does not help: NaN plus eps is NaN.
    """

    code = "PBA325"
    title = "A gradient is NaN: the standard deviation of one element was differentiated."
    kinds = frozenset({"single", "given"})

    def __init__(self) -> None:
        self._warned: Mark | None = None

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "degrees of freedom is <= 0" in message and self._warned is None:
            self._warned = replace(mark, what=say("taken over no more elements than its correction here"))

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        if birth.kind == "given":
            return self._earlier(audit, backward, birth)
        return self.found(
            say(
                "{operation} is the first operation whose result is not finite: it was taken over no more elements "
                "than its correction, and divides by zero. From there {name} gets NaN.",
                operation=operation_of(birth.node), name=names_of(audit, birth),
            ),
            marks_of(audit, backward, birth),
            Fix(
                say("Take the root of the variance plus a small number, with correction=0 for single elements."),
                "(x.var(dim=1, correction=0) + 1e-5).sqrt()",
            ),
            tensors=subjects_of(audit, birth),
            useless=[say("std + eps: NaN plus eps is NaN.")],
        )  # fmt: skip

    def _earlier(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        """It was taken of data, outside of the graph."""
        if self._warned is None:
            return None
        return self.found(
            say(
                "A tensor that goes into {operation} has NaN elements already. torch warned that a standard deviation "
                "or variance was taken over no more elements than its correction: that is 0 / 0. {name} gets NaN.",
                operation=operation_of(birth.node), name=names_of(audit, birth),
            ),
            [self._warned, *marks_of(audit, backward, birth)],
            Fix(
                say("Leave single elements out, or take the deviation with correction=0, plus a small number."),
                "(x - x.mean()) / (x.std(correction=0) + 1e-5)",
            ),
            tensors=subjects_of(audit, birth),
            confidence="medium",
            title=say("A gradient is NaN: the standard deviation of one element was used."),
            useless=[say("std + eps: NaN plus eps is NaN.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import warnings

        import torch

        warnings.simplefilter("ignore")
        features = torch.ones(3, 1, requires_grad=True)
        normal = features / (features.std(dim=1, keepdim=True) + 1e-5)
        normal.sum().backward()

    @staticmethod
    def good():
        import torch

        features = torch.ones(3, 1, requires_grad=True)
        normal = features / (features.var(dim=1, keepdim=True, correction=0) + 1e-5).sqrt()
        normal.sum().backward()
