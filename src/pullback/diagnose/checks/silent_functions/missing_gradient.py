"""PBA501: a custom backward that returns None for an input that needs a gradient."""

from __future__ import annotations

from typing import Any

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.numbers.custom import argument, is_tensor, name_of, needed
from pullback.diagnose.evidence.numbers.custom_check import CustomFault, marks_at_return
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class MissingGradient(CustomFault):
    """A custom ``backward`` returns None for an input that requires grad: torch takes it for zero, without a word.

    None is right for arguments that are no tensors, and for tensors that do not require grad
    (``ctx.needs_input_grad`` is False there). For one that does, it says that the output does not depend on it.

    Return the gradient. If the input is a constant on purpose, pass it in as ``x.detach()``, or declare the output with
    ``ctx.mark_non_differentiable``. ``torch.autograd.gradcheck`` finds this.
    """

    code = "PBA501"
    title = "The backward of a custom Function returns None for an input that requires grad."

    def tell(self, audit: Audit, node: Any, came: tuple[Any, ...], returned: tuple[Any, ...]) -> Diagnosis | None:
        if not any(map(is_tensor, came)) or not any(map(is_tensor, returned)):
            return None
        for place, shape in needed(node):
            if place < len(returned) and returned[place] is None:
                name = argument(node, place)
                return self.found(
                    say(
                        "{function}.backward returned None for {name}, of shape {shape}, which requires grad. torch "
                        "takes that for a gradient of zero: {name} never learns by this way.",
                        function=name_of(node), name=name, shape=shape,
                    ),
                    marks_at_return(node, place, say("None is returned for {name} here", name=name)),
                    Fix(say("Return the gradient of {name}.", name=name)),
                )  # fmt: skip
        return None

    @staticmethod
    def bad():
        import torch

        class Affine(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale, shift):
                ctx.save_for_backward(scale)
                return x * scale + shift

            @staticmethod
            def backward(ctx, grad):
                (scale,) = ctx.saved_tensors
                return grad * scale, None, grad.sum()

        scale, shift = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
        x = torch.randn(4, requires_grad=True)
        Affine.apply(x, scale, shift).sum().backward()

    @staticmethod
    def good():
        import torch

        class Affine(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale, shift):
                ctx.save_for_backward(x, scale)
                return x * scale + shift

            @staticmethod
            def backward(ctx, grad):
                x, scale = ctx.saved_tensors
                return grad * scale, (grad * x).sum() if ctx.needs_input_grad[1] else None, grad.sum()

        shift = torch.zeros((), requires_grad=True)
        x = torch.randn(4, requires_grad=True)
        Affine.apply(x, torch.ones(()), shift).sum().backward()
