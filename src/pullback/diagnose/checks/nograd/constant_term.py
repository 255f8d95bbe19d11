"""PBA352: a term of the loss that has no gradient."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.find import before, inside_functorch
from pullback.diagnose.evidence.slices import Body, Part, steps_of
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

SUMS = frozenset({"add", "sub", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "rsub", "add_", "sub_"})
FROM_RIGHT = frozenset({"__radd__", "__rsub__", "rsub"})
ONWARD = SUMS | {"mul", "__mul__", "__rmul__", "div", "__truediv__", "neg", "__neg__", "mean", "sum", "squeeze"}
COMPARES = frozenset({
    "gt", "lt", "ge", "le", "eq", "ne", "__gt__", "__lt__", "__ge__", "__le__", "__eq__", "__ne__", "greater", "less",
})  # fmt: skip
CUTS = COMPARES | {"argmax", "argmin", "long", "int", "short", "bool", "argsort", "count_nonzero", "nonzero"}
NUMBERS = frozenset({"item", "__float__", "tolist", "numpy", "__array__"})
# So many lines are remembered, and so many calls behind a term looked at.
MOST, WALK = 100, 300


class ConstantTerm(Fault):
    """A term of the loss is computed from what the net gives, but by a way that has no gradient.

    ``(probs > 0.5).float()``, ``argmax``, ``.item()`` and ``.detach().numpy()`` end the graph. What is computed from
    them is a number: added to the loss it changes what is printed, not what is learned. As long as another term
    requires grad, ``backward()`` runs.

    Compute the term from the numbers themselves: the probabilities in place of ``probs > 0.5`` (a soft Dice), tensors
    in place of ``.item()``, functions of torch in place of numpy's. If the term is only to be seen, print it by itself.
    """

    code = "PBA352"
    title = "A term of the loss has no gradient: it is printed with the loss, and nothing learns from it."
    hears = SUMS | NUMBERS

    def __init__(self) -> None:
        self._numbers: list[Spot] = []
        self._terms: dict[Any, tuple[Spot, Spot, str]] = {}
        self._calls: dict[int, Any] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or not call.grad or inside_functorch():
            return
        if call.name in NUMBERS:
            self._number(call, call.spot)
            return
        if isinstance(result, Tensor) and result.requires_grad and result.numel() == 1 and len(args) == 2:
            self._sum(audit, call, args)

    def _number(self, call: Call, spot: Spot) -> None:
        known = spot.node is None or any(each.node is spot.node for each in self._numbers)
        if not known and len(self._numbers) < MOST and call.inputs and _learns(call.inputs[0], call.name):
            self._numbers.append(spot)

    def _sum(self, audit: Audit, call: Call, args: tuple[Any, ...]) -> None:
        assert call.spot is not None
        key = (call.spot.code, call.spot.node)
        place = next((place for place, each in enumerate(args) if not getattr(each, "requires_grad", False)), None)
        if place is None or len(self._calls) > 10 * MOST or (isinstance(args[place], float | int) and not args[place]):
            return
        if key not in self._terms:
            found = None
            term = args[place]
            if isinstance(term, Tensor):
                value = audit.tape.value_of(term)
                cut = _cut(value) if value is not None and term.numel() == 1 else None
                found = None if cut is None or cut.spot is None else (call.spot, cut.spot, cut.name)
            if found is None and self._numbers:
                found = self._written(audit, call, 1 - place if call.name in FROM_RIGHT else place)
            if found is None or len(self._terms) > MOST:
                return
            self._terms[key] = found
        self._calls[call.number] = key

    def _written(self, audit: Audit, call: Call, place: int) -> tuple[Spot, Spot, str] | None:
        """The number that a term is made of, as the program is written."""
        assert call.spot is not None
        node, statement = call.spot.node, call.spot.statement
        side: ast.expr | None = None
        if isinstance(node, ast.BinOp):
            side, other = (node.right, node.left) if place else (node.left, node.right)
            # what is also in the rest is there for balance: (loss - level).abs() + level
            side = None if ast.unparse(side) in ast.unparse(other) else side
        elif isinstance(statement, ast.AugAssign) and place:
            side = statement.value
        if side is None or isinstance(side, ast.Constant):
            return None
        frames = audit.frames()[::-1]
        if not frames or frames[-1].code is not call.spot.code:
            return None
        for step in islice(steps_of(Part(side, Body.of(frames))), WALK):
            for spot in self._numbers:
                if spot.node is step.node:
                    return call.spot, spot, "item"
        return None

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if not self._calls:
            return
        for root in backward.roots:
            value = audit.tape.value_of(root) if isinstance(root, Tensor) and root.numel() == 1 else None
            for call in _sums(value) if value is not None else ():
                key = self._calls.pop(call.number, None)
                if key is not None and key in self._terms:
                    audit.report(self._finding(*self._terms[key]))
        self._calls.clear()

    def _finding(self, added: Spot, cut: Spot, operation: str) -> Diagnosis:
        sure = operation != "item"
        code, edits = _instead(cut)
        return self.found(
            say(
                "This term is computed from what requires grad, but through {text}, which has no gradient. It changes "
                "the value of the loss, and no gradient.",
                text=cut.text,
            ),
            [
                cut.mark(say("the gradient of this term ends here")),
                added.mark(say("a part of the loss without a gradient here")),
            ],
            Fix(
                say("Compute the term from the numbers themselves, with functions of torch that have a gradient."),
                code,
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if sure else "medium",
            apart="" if sure else say("If the term is only to be seen in the printed loss, all is well."),
            useless=[say("requires_grad_() on the term: it makes a leaf, not a way to the parameters")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        x, want = torch.randn(6, 4), torch.ones(6, 1)
        logits = net(x)
        hits = ((torch.sigmoid(logits) > 0.5).float() * want).mean()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, want) + (1 - hits)
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        x, want = torch.randn(6, 4), torch.ones(6, 1)
        logits = net(x)
        hits = (torch.sigmoid(logits) * want).mean()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, want) + (1 - hits)
        loss.backward()


def _learns(value: Value, operation: str) -> bool:
    """Whether a value requires grad, or did before it was detached: numpy takes no other, for the rest it is meant."""
    here = value
    for _ in range(3):
        call = here.maker
        if here.requires_grad or operation not in {"numpy", "__array__"} or call is None or not call.inputs:
            break
        if not call.grad or call.name not in {"detach", "cpu", "to"}:
            break
        here = call.inputs[0]
    return here.requires_grad


def _cut(value: Value) -> Call | None:
    """The call at which a term lost its gradient."""
    if value.requires_grad:
        return None
    for call in islice(before(value), WALK):
        if call.name in CUTS and call.grad and any(each.requires_grad for each in call.inputs):
            return call
        if call.name in {"detach", "detach_"}:
            return None
    return None


def _sums(value: Value) -> list[Call]:
    """The sums that a loss is made of, from the last one on."""
    found: list[Call] = []
    waiting = [value]
    while waiting and len(found) < WALK:
        call = waiting.pop().maker
        if call is not None and call.name in ONWARD:
            found.append(call)
            learned = [each for each in call.inputs if each.requires_grad and each.maker is not call]
            waiting += learned if call.name in SUMS or len(learned) == 1 else []
    return found


def _instead(cut: Spot) -> tuple[str, tuple[Edit, ...]]:
    """What to write instead of the cut."""
    node, source = cut.node, cut.source
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.lineno == node.end_lineno:
        text = source.text(node.func.value)
        if node.func.attr == "item":
            return text, (source.replaced(node, text),)
        if node.func.attr in {"argmax", "argmin"} and text not in {"torch", "np"}:
            sign = "-" if node.func.attr == "argmin" else ""
            return f"torch.softmax({sign}{text}, dim=-1)", ()
    if isinstance(node, ast.Compare) and len(node.comparators) == 1:
        left, right = source.text(node.left), source.text(node.comparators[0])
        if isinstance(node.ops[0], ast.Lt | ast.LtE):
            left, right = right, left
        return f"torch.sigmoid(10.0 * ({left} - {right}))", ()
    return "", ()
