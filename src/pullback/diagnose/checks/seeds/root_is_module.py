"""PB114: a criterion, a model or an optimizer is no loss."""

from __future__ import annotations

import ast
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import own_statements
from pullback.diagnose.evidence.seeds.objects import backward_of, is_loss
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class RootIsModule(Cause):
    """A module computes, an optimizer steps; ``backward`` belongs to the tensor that was computed.

    ``criterion = nn.MSELoss()`` makes a function. Its value, ``loss = criterion(output, target)``, is a tensor, and it
    remembers how it was computed: ``loss.backward()``. The optimizer comes after that: ``optimizer.step()``.
    """

    code = "PB114"
    title = "backward() was called on a module or an optimizer, not on the loss."
    says = ("object has no attribute 'backward'", "has no attribute 'backward'")
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = backward_of(case)
        if found is None or case.site is None or not isinstance(found[0], nn.Module | Optimizer):
            return None
        thing, node = found
        kind, text = type(thing).__name__, case.text(node)
        loss, statement = self._loss(case, thing, text)
        edits = (case.site.source.replaced(node, loss),) if loss and node is not None else ()
        marks = [case.mark(say("{name} is of type {kind}", name=text, kind=kind))]
        if statement is not None:
            place = Place(case.site.file, statement.lineno, case.site.place.function)
            marks.append(Mark.at(place, say("the loss is computed here"), case.site.source.span(statement)))
        value = case.site.evaluated(ast.Name(loss)) if loss.isidentifier() else None
        return self.found(
            say("{name} is of type {kind}: it has no gradient. backward() belongs to the loss, the tensor that was "
                "computed.", name=text, kind=kind),
            marks,
            Fix(
                say("Call backward() on the loss."),
                f"{loss or 'loss'}.backward()",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(value, "root", loss)] if value is not None and is_loss(value) else [],
        )  # fmt: skip

    @staticmethod
    def _loss(case: Case, thing: Any, text: str) -> tuple[str, ast.stmt | None]:
        """The name of the loss: what the criterion was called for, or the only scalar with a gradient."""
        assert case.site is not None
        site = case.site
        for statement in sorted(own_statements(site.scope), key=lambda each: -each.lineno):
            if not isinstance(statement, ast.Assign) or statement.lineno >= site.line:
                continue
            target, value = statement.targets[0], statement.value
            if not isinstance(target, ast.Name) or not is_loss(site.evaluated(target)):
                continue
            if any(isinstance(each, ast.Call) and case.text(each.func) == text for each in ast.walk(value)):
                return target.id, statement
        scalars = [name for name, value in site.local.items() if is_loss(value) and value.grad_fn is not None]
        if len(scalars) == 1 or "loss" in scalars:
            return ("loss" if "loss" in scalars else scalars[0]), None
        return "", None

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(4, 3)).square().mean()
        optimizer.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
