"""PB104: a complex root, and no seed."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.evidence.seeds.roots import called_root, pairs
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say
from pullback.words import dtype_name


class ComplexRoot(Cause):
    """A loss must be real: of two complex numbers none is the smaller one.

    For a real output the seed 1.0 is obvious. A complex output has two directions, its real and its imaginary part,
    and torch does not choose between them.

    Make the loss real: ``z.abs().pow(2).sum()``, ``(z * z.conj()).real.sum()``, or ``z.real`` if the imaginary part is
    rounding only. ``.abs()`` has no derivative at 0 (torch takes 0 there).
    """

    code = "PB104"
    title = "backward() was called on a complex number, without a seed."
    says = ("grad can be implicitly created only for real scalar outputs",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        pair = next((each for each in pairs(case) if isinstance(each.root, Tensor) and each.root.is_complex()), None)
        if pair is None or case.site is None or pair.seed is not None:
            return None
        name = called_root(case, pair)
        marks = [case.mark(say("{name} is complex here", name=name))]
        marks += made(case, pair.root, pair.written, say("{name} was made here", name=name))
        short = operand(case, pair.written)
        edits = (case.site.source.replaced(pair.written, f"{short}.real"),) if pair.written is not None else ()
        return self.found(
            say(
                "{name} has dtype {dtype}; a loss has to be a real number.",
                name=name,
                dtype=dtype_name(pair.root.dtype),
            ),
            marks,
            Fix(
                say("Say which real number is meant: the real part, or the absolute value squared."),
                f"{short}.real.backward()    # or: {short}.abs().pow(2).backward()",
                edits,
                "medium",
            ),
            tensors=[case.subject(pair.root, "root", name)],
        )

    @staticmethod
    def bad():
        import torch

        z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
        power = (z * z.conj()).sum()
        power.backward()

    @staticmethod
    def good():
        import torch

        z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
        power = (z * z.conj()).real.sum()
        power.backward()
