"""PBA133: the optimizer has another copy of the parameters than the model that is trained."""

from __future__ import annotations

from itertools import takewhile
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import in_optimizers, optimizer_name
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class OtherCopy(Fault):
    """The gradients went to one set of parameters, and the optimizer steps another set of the same shapes.

    ``copy.deepcopy``, building the model anew after the optimizer, or loading one make new parameters. The optimizer
    keeps the old ones: it finds no gradient on them and does nothing, while the parameters that have gradients are in
    no optimizer.

    Make the optimizer from the model that is trained, after the last copy: ``torch.optim.SGD(model.parameters())``.
    An average (EMA) copy is for evaluation: compute the loss with the original. More steps or another learning rate do
    not help.
    """

    code = "PBA133"
    title = "The optimizer holds other parameters than those that get the gradients: copies of the same shapes."

    def __init__(self) -> None:
        self._reached: dict[int, tuple[tuple[int, ...], str]] = {}
        self._spot: Spot | None = None
        self._found: WeakKeyDictionary[Optimizer, Diagnosis] = WeakKeyDictionary()

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.record.accumulates:
            new = [leaf for leaf in backward.leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in self._reached]
            for leaf in new:
                self._reached[id(leaf)] = tuple(leaf.shape), audit.name_of(leaf, "")
            self._spot = backward.spot

    def before_step(self, audit: Audit, step: Step) -> None:
        mine = list(step.parameters)
        if any(each.grad is not None or id(each) in self._reached for each in mine):
            self._found.pop(step.optimizer, None)
            return
        if step.optimizer in self._found or not self._reached or step.spot is None or self._spot is None:
            return
        trained = in_optimizers(audit)
        others = {key: value for key, value in self._reached.items() if key not in trained}
        shapes = sorted(shape for shape, _ in others.values())
        if not mine or sorted(tuple(each.shape) for each in mine) != shapes:
            return
        self._found[step.optimizer] = self._said(audit, step, mine, [name for _, name in others.values()])

    def _said(self, audit: Audit, step: Step, mine: list[Tensor], names: list[str]) -> Diagnosis:
        assert step.spot is not None
        assert self._spot is not None
        other = _owner(names) or say("another model")
        own = _owner([audit.name_of(each, "") for each in mine]) or say("the model")
        marks = [step.spot.mark(say("steps parameters that have no gradient"))]
        made = audit.made.get(step.optimizer)
        marks.append(self._spot.mark(say("the gradients go to {other}", other=other)))
        if made is not None:
            marks.append(made.mark(say("the optimizer was made of {own} here", own=own)))
        return self.found(
            say(
                "{optimizer} has the parameters of {own}, none of which has got a gradient; the passes reached "
                "those of "
                "{other}, which have the same shapes and are in no optimizer.",
                optimizer=optimizer_name(audit, step.optimizer),
                own=own,
                other=other,
            ),
            marks,
            Fix(
                say(
                    "Compute the loss with the model that the optimizer trains, or make the optimizer of the other one."
                ),
                f"torch.optim.{type(step.optimizer).__name__}({other}.parameters(), ...)"
                if "." in str(other) or str(other).isidentifier()
                else "",
            ),
            tensors=[audit.subject(mine[0], "parameter")],
        )

    def at_end(self, audit: Audit) -> None:
        for each in self._found.values():
            audit.report(each)

    @staticmethod
    def bad():
        import torch

        def build():
            return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))

        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = build()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import copy

        import torch

        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        average = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(new, 0.1)


def _owner(names: list[str]) -> str:
    """The module that all these parameters are of: ``net`` of ``net.0.weight`` and ``net.2.bias``."""
    paths = [name.split(".")[:-1] for name in names if name]
    return ".".join(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))
