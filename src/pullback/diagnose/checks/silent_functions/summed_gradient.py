"""PBA502: a custom backward that returns a gradient of another shape."""

from __future__ import annotations

from typing import Any

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.numbers.custom import argument, is_tensor, name_of, needed
from pullback.diagnose.evidence.numbers.custom_check import CustomFault, marks_at_return, shown
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SummedGradient(CustomFault):
    """A custom ``backward`` returns a gradient that is larger than its input: torch sums it to the input's shape.

    That is right where the forward broadcast the input. Where the forward reduced (``mean``, ``sum``, a product), the
    sum hides that a factor or a reduction is missing: the gradient is N times too large, say.

    Return the gradient in exactly the shape of the input, with the reduction written down:
    ``(g * x).mean(0)``. ``torch.autograd.gradcheck`` finds wrong factors.
    """

    code = "PBA502"
    title = "The backward of a custom Function returns a gradient larger than its input, and torch sums it."

    def tell(self, audit: Audit, node: Any, came: tuple[Any, ...], returned: tuple[Any, ...]) -> Diagnosis | None:
        outputs = {shown(each.shape) for each in came if is_tensor(each)}
        for place, shape in needed(node):
            value = returned[place] if place < len(returned) else None
            if value is None or not is_tensor(value) or shown(value.shape) == shape or shown(value.shape) in outputs:
                continue
            name, got = argument(node, place), shown(value.shape)
            return self.found(
                say(
                    "{function}.backward returned a gradient of shape {got} for {name}, which has shape {shape}. torch "
                    "sums it to that shape without a word. The output does not have shape {got}: this is no broadcast "
                    "of {name}.",
                    function=name_of(node), got=got, name=name, shape=shape,
                ),
                marks_at_return(node, place, say("the gradient of {name} is returned here", name=name)),
                Fix(say("Return it in exactly the shape of the input, with the reduction written down.")),
            )  # fmt: skip
        return None

    @staticmethod
    def bad():
        import torch

        class Energy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, weight, data):
                ctx.save_for_backward(data)
                return (data * weight).mean()

            @staticmethod
            def backward(ctx, grad):
                (data,) = ctx.saved_tensors
                return grad * data, None

        weight = torch.randn(3, requires_grad=True)
        Energy.apply(weight, torch.randn(5, 3)).backward()

    @staticmethod
    def good():
        import torch

        class Energy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, weight, data):
                ctx.save_for_backward(data)
                return (data * weight).mean()

            @staticmethod
            def backward(ctx, grad):
                (data,) = ctx.saved_tensors
                return grad * data.sum(0) / data.numel(), None

        weight = torch.randn(3, requires_grad=True)
        Energy.apply(weight, torch.randn(5, 3)).backward()
