"""PBA512: a module that is called with its own parameters, not with those that are differentiated."""

from __future__ import annotations

from torch import Tensor, nn

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.numbers.functional import Lost
from pullback.diagnose.evidence.numbers.functional_check import FunctionalFault
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.saved import pieces
from pullback.language import say


class IgnoredParameters(FunctionalFault):
    """The function is differentiated by parameters that it does not use: the module in it uses its own.

    ``torch.func.grad`` differentiates by the arguments of the function. A module called as ``net(x)`` reads
    ``net.weight``, not the ``params`` that were passed; the output does not depend on them, and zeros come back.

    Call the module with the parameters: ``torch.func.functional_call(net, params, (x,))``.
    """

    code = "PBA512"
    title = "A derivative by parameters is zero: the function ignores them and uses the module's own."

    def tell(self, audit: Audit, seen: Lost) -> Diagnosis | None:
        if seen.reason != "unused":
            return None
        keys = {key for each in seen.inputs for key in _storages(each)}
        owner = next(
            (
                (name, module)
                for name, module in audit.modules()
                if keys & {key for p in module.parameters() for key in _storages(p)}
            ),
            None,
        )
        if owner is None:
            return None
        name, _ = owner
        called = self._called(audit, owner[1])
        marks = [seen.asked.mark(say("differentiated here"))]
        if called is not None:
            marks.insert(0, called)
        return self.found(
            say(
                "The inputs are the parameters of {name}, but the function does not use them: {name}(...) inside of it "
                "reads the parameters that the module has. The derivative is returned as zeros, without an error.",
                name=name,
            ),
            marks,
            Fix(say("Call the module with the parameters."), f"torch.func.functional_call({name}, params, (x,))"),
        )  # fmt: skip

    @staticmethod
    def _called(audit: Audit, module: nn.Module) -> Mark | None:
        """The line that last used a parameter of the module."""
        own = {id(parameter) for parameter in module.parameters()}
        for call in reversed(audit.tape.calls):
            if call.spot is not None and any(
                id(value.tensor()) in own for value in call.inputs if value.tensor() is not None
            ):
                return call.spot.mark(say("the module uses its own parameters here"))
        return None

    @staticmethod
    def bad():
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        data = torch.randn(4, 3)

        def loss(weights, x):
            return model(x).pow(2).mean()

        weights = {name: each.detach() for name, each in model.named_parameters()}
        gradients, value = torch.func.grad_and_value(loss)(weights, data)

    @staticmethod
    def good():
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        data = torch.randn(4, 3)

        def loss(weights, x):
            return torch.func.functional_call(model, weights, (x,)).pow(2).mean()

        weights = {name: each.detach() for name, each in model.named_parameters()}
        gradients, value = torch.func.grad_and_value(loss)(weights, data)


def _storages(tensor: Tensor) -> set[int]:
    while (inner := _unwrapped(tensor)) is not None:
        tensor = inner
    return {key for key, _, _ in pieces(tensor)}


def _unwrapped(tensor: Tensor) -> Tensor | None:
    from torch._C import _functorch as functorch

    return functorch.get_unwrapped(tensor) if functorch.is_functorch_wrapped_tensor(tensor) else None
