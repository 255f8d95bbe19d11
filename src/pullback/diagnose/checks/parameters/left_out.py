"""PBA150: a module that no optimizer was given."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from weakref import ref

from torch import nn

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import held, in_optimizers
from pullback.diagnose.evidence.training.untrained import Untrained
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

STEPS = 2


@dataclass
class _Module:
    """A module that was reached beside others that are trained.

    Attributes:
        name: What the program calls it.
        module: The module.
        spot: The pass.
        made: Where the optimizer of the others was made.
    """

    name: str
    module: ref[nn.Module]
    spot: Spot | None
    made: Spot | None


class LeftOut(Fault):
    """A loss trains one module and passes its gradients to another as well, which no optimizer has.

    ``optimizer = Adam(net.parameters())`` knows nothing of the ``head`` or the ``embedding`` that the loss goes through
    too. Their gradients are computed and added up in each step, and nobody uses them: they stay as they were
    initialised.

    Give the optimizer all that is to be trained: ``Adam([*net.parameters(), *head.parameters()])``, or make one module
    of both. What is to stay as it is, is better told so: ``head.requires_grad_(False)`` saves the work.
    """

    code = "PBA150"
    title = "A module gets gradients beside one that is trained, and no optimizer has its parameters."

    def __init__(self) -> None:
        self._untrained = Untrained()
        self._found: dict[int, _Module] = {}
        self._steps = 0

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        looks = self._untrained.looks
        self._untrained.passes_now(audit, backward)
        if self._untrained.looks == looks or not self._untrained.left:
            return
        trained, reached = in_optimizers(audit), {id(each) for each in backward.leaves}
        modules = [
            (name, module, {id(each) for each in module.parameters()}) for name, module in held(audit, nn.Module)
        ]
        if not any(own & trained & reached for _, _, own in modules):
            return
        inner = {id(part) for _, module, _ in modules for part in module.modules() if part is not module}
        made = next((audit.made.get(each) for each in list(audit.optimizers) if audit.made.get(each)), None)
        for name, module, own in modules:
            if own & reached and not own & trained and module.training and id(module) not in inner:
                self._found.setdefault(id(module), _Module(name, ref(module), backward.spot, made))

    def before_step(self, audit: Audit, step: Step) -> None:
        self._steps += 1

    def at_end(self, audit: Audit) -> None:
        if self._steps < STEPS or audit.reported("PBA133"):
            return
        now = {key for left in self._untrained.now(audit) if (key := id(left.tensor()))}
        for found in self._found.values():
            module = found.module()
            reached = [each for each in module.parameters() if each.grad is not None] if module is not None else []
            if reached and all(id(each) in now for each in reached):
                audit.report(self._finding(audit, found, len(reached)))

    def _finding(self, audit: Audit, found: _Module, count: int) -> Diagnosis:
        marks = [found.made.mark(say("{name} is not given to the optimizer", name=found.name))] if found.made else []
        if found.spot is not None:
            marks.append(found.spot.mark(say("computes gradients for {name} too", name=found.name)))
        edits, code = _with(found)
        return self.found(
            say(
                "{count} parameters of {name} get gradients in each pass, together with parameters that are trained, "
                "but no optimizer has them: they never change.",
                count=count,
                name=found.name,
            ),
            marks,
            Fix(say("Give them to the optimizer too."), code, edits, "medium"),
            confidence="medium",
            notes=[say("If {name} is to stay as it is: {name}.requires_grad_(False).", name=found.name)],
        )

    @staticmethod
    def bad():
        import torch

        body, head = torch.nn.GRU(3, 4, batch_first=True), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            head(body(torch.randn(8, 5, 3))[0][:, -1]).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        body, head = torch.nn.GRU(3, 4, batch_first=True), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        judge = torch.nn.Linear(1, 1).requires_grad_(False)
        for _ in range(4):
            optimizer.zero_grad()
            judge(head(body(torch.randn(8, 5, 3))[0][:, -1])).square().mean().backward()
            optimizer.step()


def _with(found: _Module) -> tuple[tuple[Edit, ...], str]:
    """The optimizer as it is made with the parameters of the module."""
    call = found.made.node if found.made is not None else None
    if found.made is None or not isinstance(call, ast.Call) or not call.args:
        return (), f"[..., *{found.name}.parameters()]"
    source = found.made.source
    edit = source.replaced(call.args[0], f"[*{source.text(call.args[0])}, *{found.name}.parameters()]")
    return (edit,), source.code(edit).strip()
