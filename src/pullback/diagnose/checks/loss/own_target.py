"""PBA307: the target of Q-learning carries a gradient."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import SAME, before, inside_functorch, leaves_behind, origin
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
DIFFERENCES = frozenset({"sub", "__sub__"})
ARITHMETIC = SAME | {"add", "__add__", "__radd__", "mul", "__mul__", "__rmul__", "sub", "__sub__", "rsub", "__rsub__"}
LARGEST = frozenset({"max", "amax"})


class OwnTarget(Fault):
    """The target of a temporal-difference loss was computed with the net that learns, and carries a gradient.

    In ``r + gamma * q(next_state).max(1).values`` the net says what it should learn itself. With a gradient through
    it, each step also moves the target towards the prediction, and the values drift to what is easiest, not to what is
    right. Nothing raises, and the loss even falls faster.

    Compute the target under ``torch.no_grad()``, or write ``.detach()`` behind it; best with a copy of the net that is
    renewed now and then. An optimizer that holds only a part of the parameters does not help.
    """

    code = "PBA307"
    title = "The target of a Q-learning loss carries a gradient: it is computed with the net that learns."
    hears = LOSSES | DIFFERENCES

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or len(call.inputs) != 2 or not isinstance(result, Tensor) or inside_functorch():
            return
        if not all(each.requires_grad for each in call.inputs):
            return
        for chosen, target in (call.inputs, call.inputs[::-1]):
            largest = _best(target)
            if largest is None or not _picked(chosen):
                continue
            shared = {each.number for each in leaves_behind(chosen)} & {each.number for each in leaves_behind(target)}
            tensor = target.tensor()
            if shared and tensor is not None:
                audit.report(self._finding(audit, call, target, largest, tensor))
                return

    def _finding(self, audit: Audit, call: Call, target: Value, largest: Call, tensor: Tensor) -> Diagnosis:
        assert call.spot is not None
        maker = origin(target)
        spot = maker.spot if maker is not None and maker.spot is not None else largest.spot
        marks = [spot.mark(say("the target is computed with a gradient here"))] if spot is not None else []
        marks.append(call.spot.mark(say("compared with the prediction here")))
        edits: tuple[Edit, ...] = ()
        code = "target = target.detach()"
        statement = spot.statement if spot is not None else None
        if spot is not None and isinstance(statement, ast.Assign) and statement.lineno == statement.end_lineno:
            edits = (spot.source.replaced(statement.value, f"({spot.source.text(statement.value)}).detach()"),)
            code = spot.source.code(*edits).strip()
        return self.found(
            say(
                "The target holds the largest value that the net itself gives to the next state, and requires grad: "
                "the loss also moves the target towards the prediction.",
            ),
            marks,
            Fix(say("Compute the target without a gradient."), code, edits, "high" if edits else "medium"),
            tensors=[audit.subject(tensor, "target", "the target")],
            confidence="medium",  # the residual gradient is meant so, seldom
        )

    @staticmethod
    def bad():
        import torch

        values = torch.nn.Linear(3, 2)
        state, following, reward = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5)
        action = torch.randint(0, 2, (5, 1))
        goal = reward + 0.9 * values(following).amax(1)
        torch.nn.functional.mse_loss(values(state).gather(1, action)[:, 0], goal).backward()

    @staticmethod
    def good():
        import torch

        values = torch.nn.Linear(3, 2)
        state, following, reward = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5)
        action = torch.randint(0, 2, (5, 1))
        with torch.no_grad():
            goal = reward + 0.9 * values(following).amax(1)
        torch.nn.functional.mse_loss(values(state).gather(1, action)[:, 0], goal).backward()


def _picked(chosen: Value) -> bool:
    """Whether these are the values of the actions that were taken."""
    return any(call.name == "gather" for call in islice(before(chosen), 4))


def _best(target: Value) -> Call | None:
    """The maximum over the actions that was added to a reward, if this is what the target is."""
    added, waiting, seen = False, [target], 0
    while waiting and seen < 12:
        here = waiting.pop()
        seen += 1
        call = here.maker
        if call is None or not here.requires_grad or not call.inputs:
            continue
        if call.name in LARGEST:
            scores = call.inputs[0]
            reduced = len(scores.shape) >= 2 and len(here.shape) >= len(scores.shape) - 1 and here.shape != scores.shape
            return call if added and reduced and scores.requires_grad else None
        if call.name in ARITHMETIC:
            added = added or "add" in call.name
            waiting += [each for each in call.inputs if each is not here]
    return None
