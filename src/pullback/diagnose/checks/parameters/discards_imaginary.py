"""PBA144: a complex tensor was cast to a real one."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.warned import told
from pullback.diagnose.values import Fix, Mark
from pullback.language import say


class DiscardsImaginary(Fault):
    """A complex tensor was cast to a real dtype: the imaginary part is dropped, and so is its gradient.

    ``z.float()``, ``z.to(torch.float32)`` and writing a complex value into a real tensor keep only ``z.real``. The
    gradient by the imaginary part is then 0, whatever the loss.

    Say what is meant: ``z.real``, ``z.imag``, ``z.abs()``, or ``torch.view_as_real(z)`` for both parts. Casting to
    float64 instead of float32 does not help.
    """

    code = "PBA144"
    title = "A complex tensor was cast to real numbers: the imaginary part and its gradient are dropped."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "Casting complex values to real discards the imaginary part" not in message:
            return
        audit.report(
            self.found(
                say("The real dtype has no room for the imaginary part: it is dropped here, and gets no gradient."),
                [told(mark, say("the imaginary part is dropped"))],
                Fix(say("Say which real quantity is meant."), "z.abs()    # or z.real, or torch.view_as_real(z)"),
            )
        )

    @staticmethod
    def bad():
        import torch

        z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
        loss = (z * 2).float().sum()
        loss.backward()

    @staticmethod
    def good():
        import torch

        z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
        loss = (z * 2).abs().sum()
        loss.backward()
