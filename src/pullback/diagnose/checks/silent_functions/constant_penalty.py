"""PBA518: a gradient penalty without create_graph."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import before, inside_functorch
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

SUMS = frozenset({
    "add", "__add__", "__radd__", "add_", "__iadd__", "sub", "__sub__", "rsub", "__rsub__", "mul", "__mul__",
    "__rmul__", "div", "sum", "mean", "stack", "true_divide", "squeeze", "view", "reshape",
})  # fmt: skip
MOST = 300


class ConstantPenalty(Fault):
    """A penalty made of gradients is a constant, because they were taken without ``create_graph=True``.

    ``torch.autograd.grad`` returns tensors without a graph by default. Their norm, added to the loss, changes its value
    and none of its gradients: the penalty trains nothing. ``retain_graph=True`` is something else: it only keeps the
    graph for another pass.

    Pass ``create_graph=True`` (it keeps the graph too).
    """

    code = "PBA518"
    title = "A term of the loss made of gradients is constant: they were taken without create_graph."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if inside_functorch():
            return
        for root in backward.roots:
            value = audit.tape.value_of(root) if isinstance(root, Tensor) else None
            for term in _constant_terms(value) if value is not None else ():
                found = _gradient(term)
                if found is not None and found.spot is not None:
                    audit.report(self._finding(backward, term, found))

    def _finding(self, backward: Backward, term: Value, taken: Call) -> Diagnosis:
        assert taken.spot is not None
        marks = [taken.spot.mark(say("the gradient is taken here, without a graph"))]
        if term.maker is not None and term.maker.spot is not None:
            marks.append(term.maker.spot.mark(say("the term made of it has no graph")))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("the loss is differentiated here")))
        node, edits, code = taken.spot.node, (), "torch.autograd.grad(out, x, create_graph=True)"
        if isinstance(node, ast.Call) and not any(each.arg == "create_graph" for each in node.keywords):
            code = taken.spot.source.text(node).rstrip()[:-1].rstrip().rstrip(",") + ", create_graph=True)"
            edits: tuple[Edit, ...] = (taken.spot.source.replaced(node, code),)  # type: ignore[no-redef]
        return self.found(
            say(
                "A term of the loss is computed from the result of torch.autograd.grad, which has no graph: the term "
                "is a constant for the backward pass, and has no influence on any gradient."
            ),
            marks,
            Fix(say("Take the gradient with create_graph=True."), code, edits, "high" if edits else "medium"),
            useless=[say("retain_graph=True: it keeps the graph of the output, and makes none for the gradient.")],
        )

    @staticmethod
    def bad():
        import torch

        critic = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softplus(), torch.nn.Linear(4, 1))
        x = torch.randn(5, 3, requires_grad=True)
        score = critic(x)
        slope = torch.autograd.grad(score.sum(), x, retain_graph=True)[0]
        loss = score.mean() + 0.1 * slope.pow(2).sum(1).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        critic = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softplus(), torch.nn.Linear(4, 1))
        x = torch.randn(5, 3, requires_grad=True)
        score = critic(x)
        slope = torch.autograd.grad(score.sum(), x, create_graph=True)[0]
        step = torch.autograd.grad(score.sum(), x, retain_graph=True)[0]
        loss = score.mean() + 0.1 * slope.pow(2).sum(1).mean() + critic(x.detach() + 0.01 * step.sign()).mean()
        loss.backward()


def _constant_terms(root: Value) -> list[Value]:
    """The scalar terms of a sum that require no grad, where the sum does."""
    found: dict[int, Value] = {}
    waiting, seen = [root], 0
    while waiting and seen < MOST:
        call = waiting.pop().maker
        seen += 1
        if call is None or call.name not in SUMS:
            continue
        sums = call.name in {
            "add",
            "__add__",
            "__radd__",
            "add_",
            "__iadd__",
            "sub",
            "__sub__",
            "rsub",
            "__rsub__",
            "stack",
        }
        for given in call.inputs:
            if given.requires_grad:
                waiting.append(given)
            elif sums and not given.shape and given.dtype.is_floating_point:
                found[given.number] = given
    return list(found.values())


def _gradient(term: Value) -> Call | None:
    """The call of autograd.grad that a term came from, unless it was detached on purpose."""
    for call, _ in zip(before(term), range(MOST), strict=False):
        if call.name == "detach":
            return None
        if call.name == "grad":
            return call if call.outputs and not any(value.requires_grad for value in call.outputs) else None
        if any(value.requires_grad for value in call.inputs):
            return None
    return None
