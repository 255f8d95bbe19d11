"""PBA351: parameters whose scores go into the loss only behind argmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.find import before, inside_functorch
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

# So many lines are remembered, so many calls behind a value looked at, and so many passes at each line.
MOST, WALK, LOOKS = 100, 2000, 4


@dataclass
class _Choice:
    """A line that takes the place of the largest."""

    name: str
    spot: Spot
    leaves: list[ref[Tensor]]
    calls: set[int] = field(default_factory=set)
    into_loss: Spot | None = None


class Choice(Fault):
    """``argmax`` gives integers: what is computed from them has no gradient, and the scores behind them never learn.

    A loss of ``scores.argmax(1).float()`` compares the classes that were chosen. Near the present scores it is
    constant; torch does not record ``argmax`` at all. As long as another part of the loss requires grad,
    ``backward()`` runs, and ``.grad`` of the parameters behind the scores stays ``None``.

    Give the scores themselves to a loss: ``F.cross_entropy(scores, target)``. Where a hard choice must go on into the
    net, use ``F.gumbel_softmax(scores, hard=True)``, or a weighted sum with the softmax of the scores. ``.float()`` and
    ``requires_grad_()`` behind the ``argmax`` do not bring the graph back.
    """

    code = "PBA351"
    title = "Parameters never get a gradient: their scores go into the loss only behind argmax."
    hears = frozenset({"argmax", "argmin"})

    def __init__(self) -> None:
        self._choices: dict[Key, _Choice] = {}
        self._looks: dict[Key, int] = {}
        self._got: dict[int, ref[Tensor]] = {}
        self._stepped: dict[int, ref[Tensor]] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or not call.grad or not call.inputs or inside_functorch():
            return
        choice = self._choices.get(key_of(call.spot))
        if choice is None:
            leaves = _leaves(call) if call.inputs[0].requires_grad and len(self._choices) < MOST else []
            if not leaves:
                return
            choice = self._choices[key_of(call.spot)] = _Choice(call.name, call.spot, leaves)
        if len(choice.calls) < MOST:
            choice.calls.add(call.number)

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._note(self._got, backward.leaves)
        waiting = [choice for choice in self._choices.values() if choice.into_loss is None]
        if not waiting or backward.spot is None:
            return
        key = key_of(backward.spot)
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._looks[key] > LOOKS:
            return
        values = [audit.tape.value_of(root) for root in backward.roots if isinstance(root, Tensor)]
        numbers = {call.number for value in values if value is not None for call in islice(before(value), WALK)}
        for choice in waiting:
            if choice.calls & numbers:
                choice.into_loss = backward.spot

    def before_step(self, audit: Audit, step: Step) -> None:
        given = list(step.parameters)
        self._note(self._stepped, given)
        self._note(self._got, [each for each in given if each.grad is not None])

    @staticmethod
    def _note(where: dict[int, ref[Tensor]], tensors: list[Tensor]) -> None:
        for each in tensors:
            if id(each) not in where:
                where[id(each)] = ref(each)

    def at_end(self, audit: Audit) -> None:
        for choice in self._choices.values():
            behind = [tensor for leaf in choice.leaves if (tensor := leaf()) is not None]
            if choice.into_loss is None or not behind:
                continue
            # all of them are to be trained, and none ever was: who chooses by a fixed net may mean it
            if all(_in(self._stepped, each) and not _in(self._got, each) for each in behind):
                audit.report(self._finding(audit, choice, behind))

    def _finding(self, audit: Audit, choice: _Choice, behind: list[Tensor]) -> Diagnosis:
        assert choice.into_loss is not None
        name = audit.name_of(behind[0], "a parameter")
        return self.found(
            say(
                "{operation} gives integers, which have no gradient. {name} is behind the scores, and what is computed "
                "from it goes into the loss only this way: the optimizer steps it, but it never got a gradient.",
                operation=choice.name, name=name,
            ),
            [
                choice.spot.mark(say("the gradient ends here")),
                choice.into_loss.mark(say("differentiated here")),
            ],
            Fix(say("Compute the loss from the scores themselves."), "F.cross_entropy(scores, target)"),
            tensors=[audit.subject(each, "parameter") for each in behind[:3]],
            useless=[say("float() or requires_grad_() behind it: the graph before it was never recorded")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        choose, move = torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*choose.parameters(), *move.parameters()], lr=0.1)
        for _ in range(2):
            x, want = torch.randn(6, 4), torch.randint(0, 3, (6,))
            chosen = choose(x).argmax(-1)
            loss = (chosen.double() - want).abs().mean() + move(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        choose, move = torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*choose.parameters(), *move.parameters()], lr=0.1)
        for _ in range(2):
            x, want = torch.randn(6, 4), torch.randint(0, 3, (6,))
            scores = choose(x)
            right = (scores.argmax(-1) == want).float().mean()
            loss = torch.nn.functional.cross_entropy(scores, want) + move(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(float(right))


def _in(known: Mapping[int, ref[Tensor]], tensor: Tensor) -> bool:
    found = known.get(id(tensor))
    return found is not None and found() is tensor


def _leaves(call: Call) -> list[ref[Tensor]]:
    """The leaves that require grad behind the input of a call, through whatever it came."""
    found = {each.number: each.tensor for each in call.inputs if each.leaf and each.requires_grad}
    for maker in islice(before(call.inputs[0]), WALK // 4):
        found.update({each.number: each.tensor for each in maker.inputs if each.leaf and each.requires_grad})
    return list(found.values())
