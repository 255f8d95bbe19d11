"""PB323: a loss that depends on what eigenvectors or singular vectors leave open."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import asking_frame
from pullback.diagnose.evidence.freed.operations import operation_mark
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class Gauge(Cause):
    """The loss depends on the phase of eigenvectors or singular vectors, which no matrix determines.

    An eigenvector `v` of a complex matrix is as good as `exp(i phi) v` for any angle. The routine returns some
    choice of phases; a loss that changes with the choice has no derivative, and torch notices and refuses.

    Let the loss use only what does not change with the phase: `v.abs()`, projectors `v[:, :k] @ v[:, :k].mH`, or
    fix the phase yourself (make one component of each vector real and positive). Eigenvalues alone are always safe:
    `torch.linalg.eigvalsh`.
    """

    code = "PB323"
    title = "The loss depends on the phase of eigenvectors or singular vectors, which is arbitrary."
    says = ("specified loss function depends on this", "is ill-defined")

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = re.match(r"(\w+?)_backward", case.message)
        name = found.group(1) if found else "linalg_eigh"
        asking = asking_frame(case)
        marks = [asking.mark(say("the gradient is asked for here")) if asking else case.mark("")]
        marks += operation_mark(case, name, say("the vectors were made here")) or operation_mark(
            case, name.removeprefix("linalg_"), say("the vectors were made here")
        )
        return self.found(
            say(
                "The vectors of {name} are determined up to a factor of modulus 1 each. This loss changes with that "
                "factor, so it has no gradient.",
                name=name.replace("_", ".", 1),
            ),
            marks,
            Fix(
                say("Use what does not depend on the phase: moduli, projectors, or eigenvalues only."),
                "vectors.abs()",
                (),
                "low",
            ),
        )

    @staticmethod
    def bad():
        import torch

        torch.manual_seed(0)
        m = torch.randn(2, 2, dtype=torch.complex128, requires_grad=True)
        u, s, vh = torch.linalg.svd(m)
        u.imag.sum().backward()

    @staticmethod
    def good():
        import torch

        torch.manual_seed(0)
        m = torch.randn(2, 2, dtype=torch.complex128, requires_grad=True)
        u, s, vh = torch.linalg.svd(m)
        u.abs().square().prod().backward()
