"""PBA333: a cast that drops the imaginary part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import operand
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say


class ImaginaryPart(Fault):
    """A complex tensor was cast to a real dtype: its imaginary part is gone, and with it its gradient.

    torch warns once, then never again in this process. The gradient of the imaginary part is zero from there on.

    Say which real number is meant: ``z.real``, ``z.imag``, ``z.abs()``, ``torch.view_as_real(z)``.
    """

    code = "PBA333"
    title = "A complex tensor was cast to a real dtype, which drops its imaginary part and the gradient of it."

    hears = frozenset({"to", "float", "double", "half", "bfloat16", "type", "type_as"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not given.is_complex() or not isinstance(result, Tensor):
            return
        if result.is_complex() or not given.requires_grad or not call.grad or call.spot is None:
            return
        name = audit.name_of(given, "")
        node = operand(call.spot, call.spot.node)
        name = call.spot.source.text(node) if node is not None else name or "z"
        audit.report(
            self.found(
                say(
                    "{name} is complex, and the cast keeps the real part only: the imaginary part has no influence on "
                    "the output, and its gradient is zero. torch warns of it once in a process.",
                    name=name,
                ),
                [call.spot.mark(say("cast here"))],
                Fix(
                    say("Say which real number is meant."),
                    f"{name}.real    # or: {name}.abs(), torch.view_as_real({name})",
                ),
                tensors=[audit.subject(given, "operand", name)],
            )
        )

    @staticmethod
    def bad():
        import warnings

        import torch

        warnings.simplefilter("ignore")
        spectrum = torch.fft.fft(torch.randn(4, requires_grad=True))
        spectrum.float().sum().backward()

    @staticmethod
    def good():
        import torch

        spectrum = torch.fft.fft(torch.randn(4, requires_grad=True))
        spectrum.abs().sum().backward()
