"""PB113: an object that holds the loss is not the loss."""

from __future__ import annotations

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.evidence.seeds.objects import backward_of, chosen, losses_in, tensors_in
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class RootIsOutput(Cause):
    """A model returned an object with several results, and ``backward`` was called on the object.

    Models of transformers return a ``ModelOutput``, others a dataclass or a class of their own. The loss is one of its
    fields: ``outputs.loss.backward()``.

    A ``ModelOutput`` has a loss only if the model was given ``labels=``; otherwise its ``loss`` is None.
    """

    code = "PB113"
    title = "backward() was called on an object that holds the results of a model, not on a tensor."
    says = ("object has no attribute 'backward'",)
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = backward_of(case)
        if found is None or case.site is None:
            return None
        thing, node = found
        if thing is None or type(thing) in (tuple, list, dict) or isinstance(thing, nn.Module | str | int | float):
            return None
        if isinstance(thing, tuple) and hasattr(thing, "_fields"):
            return None
        tensors = tensors_in(thing)
        if not tensors:
            return None
        kind, text = type(thing).__name__, operand(case, node)
        one = chosen(losses_in(thing))
        edits = (case.site.source.replaced(node, f"{text}{one[0]}"),) if one and node is not None else ()
        marks = [case.mark(say("{name} is of type {kind} here", name=text, kind=kind))]
        marks += made(case, None, node, say("the {kind} came from here", kind=kind))
        names = ", ".join(f"{text}{access}" for access, _ in tensors[:4])
        return self.found(
            say("{name} is of type {kind}, which has no backward(); what it holds has: {fields}.", name=text, kind=kind,
                fields=names),
            marks,
            Fix(
                say("Call backward() on the loss in it."),
                f"{text}{one[0]}.backward()" if one else f"loss = criterion({text}{tensors[0][0]}, target)",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(part, "part", f"{text}{access}") for access, part in tensors[:4]],
        )  # fmt: skip

    @staticmethod
    def bad():
        from types import SimpleNamespace

        import torch

        net = torch.nn.Linear(3, 1)
        logits = net(torch.randn(4, 3))
        result = SimpleNamespace(loss=logits.square().mean(), logits=logits)
        result.backward()

    @staticmethod
    def good():
        from types import SimpleNamespace

        import torch

        net = torch.nn.Linear(3, 1)
        logits = net(torch.randn(4, 3))
        result = SimpleNamespace(loss=logits.square().mean(), logits=logits)
        result.loss.backward()
