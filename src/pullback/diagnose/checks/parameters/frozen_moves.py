"""PBA136: a frozen parameter that still has a gradient."""

from __future__ import annotations

import ast
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import after
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class FrozenMoves(Fault):
    """A parameter that does not require grad was changed by the optimizer, because an old gradient was left on it.

    Optimizers look at ``.grad``, not at ``requires_grad``. Freezing a parameter after a pass leaves the gradient of
    that pass in place, and every later ``step()`` uses it again. Momentum and weight decay then move the parameter
    too.

    Clear it when freezing: ``p.requires_grad_(False); p.grad = None``, or make the optimizer of the other parameters
    only. ``zero_grad(set_to_none=False)`` leaves a zero, with which weight decay and momentum still move the
    parameter.
    """

    code = "PBA136"
    title = "The optimizer changed a frozen parameter: a gradient from before was still on it."

    def __init__(self) -> None:
        self._frozen: list[tuple[ref[Tensor], int]] = []
        self._trained: dict[int, ref[Tensor]] = {}

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._trained.update((id(leaf), ref(leaf)) for leaf in backward.leaves)

    def before_step(self, audit: Audit, step: Step) -> None:
        self._frozen = [
            (ref(each), each._version)
            for each in step.parameters
            if not each.requires_grad and self._was_trained(each) and each.grad is not None and bool(each.grad.any())
        ]

    def _was_trained(self, tensor: Tensor) -> bool:
        """A tensor that never required grad is none that was frozen: its gradient was written by hand."""
        known = self._trained.get(id(tensor))
        return known is not None and known() is tensor

    def after_step(self, audit: Audit, step: Step) -> None:
        frozen, self._frozen = self._frozen, []
        for one, version in frozen:
            parameter = one()
            if parameter is None or parameter._version == version or step.spot is None:
                continue
            where = self._freezing(audit, parameter)
            name = audit.name_of(parameter, "p")
            marks = [step.spot.mark(say("moves {name}", name=name))]
            edits: tuple[Edit, ...] = ()
            line = f"{name}.grad = None"
            if where is not None:
                marks = [where.mark(say("frozen here, with a gradient left on it")), *marks]
                if (owner := _frozen_at(where)) is not None:
                    line = f"{owner}.grad = None"
                    edits = after(where, line)
            audit.report(
                self.found(
                    say("{name} does not require grad, but has a gradient from before; step() uses that.", name=name),
                    marks,
                    Fix(say("Clear the gradient when freezing."), line, edits, "high" if edits else "medium"),
                    tensors=[audit.subject(parameter, "parameter", name)],
                )
            )

    @staticmethod
    def _freezing(audit: Audit, parameter: Tensor) -> Spot | None:
        for call in reversed(audit.tape.calls):
            if call.name not in {"requires_grad_", "set requires_grad"} or not call.inputs or call.spot is None:
                continue
            if call.inputs[0].tensor() is parameter:
                return call.spot
        return None

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(2, 4)).sum().backward()
        for p in net[0].parameters():
            p.requires_grad = False
        optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(2, 4)).sum().backward()
        for p in net[0].parameters():
            p.requires_grad = False
            p.grad = None
        optimizer.step()


def _frozen_at(spot: Spot) -> str | None:
    """What is frozen at a line, as it is written: ``p`` in ``p.requires_grad = False``; None of a whole module."""
    statement, node = spot.statement, spot.node
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        return spot.source.text(statement.targets[0].value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        owner = node.func.value
        inner = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        return spot.source.text(owner) if inner in {"p", "param", "parameter", "weight", "bias"} else None
    return None
