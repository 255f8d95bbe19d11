"""PB902: a checkpointed block computes something else the second time."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.checkpoints import checkpoints, marks_of, narrowed, recomputed
from pullback.diagnose.evidence.functions.classes import Method, method_behind
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class CheckpointDiffers(Cause):
    """A checkpointed block computed something else in the backward pass than in the forward pass.

    A checkpoint runs its block twice, and both runs have to save the same tensors. Usual reasons why they do not:

    - the block counts its calls, grows a cache or a list, or reads a variable that changed in between;
    - it draws random numbers that torch's generators do not know (``random``, NumPy), or decides by the data;
    - ``model.eval()`` or ``.half()`` came between forward and backward, or autocast was on in one of them only;
    - it is distributed code that communicates a varying number of tensors.

    ``determinism_check="none"`` only hides it: the gradients are wrong then. ``debug=True`` prints both lists of
    operations.
    """

    code = "PB902"
    title = "A checkpointed block computed something else the second time than the first."
    says = (
        "have different metadata than during the forward pass",
        "A different number of tensors was saved during the original forward and recomputation",
        "trying to save more tensors during recomputation",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        function = recomputed(case)
        calls = narrowed(checkpoints(case), function)
        forward = getattr(type(function), "forward", None) if not hasattr(function, "__code__") else None
        method = method_behind(getattr(function, "__func__", forward or function))
        marks = [case.mark(say("the block is computed again here"))]
        marks += marks_of(calls, say("it is checkpointed here"))
        reasons: list[str] = []
        if method is not None:
            marks.append(method.mark(method.node, say("this runs twice")))
            changes = _changing(method)
            marks += [
                Mark.at(method.mark(each, "").place, what, method.source.span(each)) for each, what in changes[:4]
            ]
            reasons = [method.text(each) for each, _ in changes[:4]]
        more = say("It depends on what changes between the runs: {lines}.", lines="; ".join(reasons)) if reasons else ""
        return self.found(
            say(
                "The block is computed once in the forward pass and once more in the backward pass, and the tensors "
                "that the two runs saved do not agree. {more}",
                more=more,
            ).rstrip(),
            marks,
            Fix(
                say("Let the block compute the same in both runs: take out what changes, and pass it as an argument."),
                "",
                (),
                "medium",
            ),
            useless=[say('determinism_check="none": the gradients are wrong then.')],
            notes=[case.message.partition("\n\nTip")[0][:600]],
        )

    @staticmethod
    def bad():
        import torch
        from torch.utils.checkpoint import checkpoint

        history = []

        def block(x):
            history.append(x.detach())
            return torch.cat([x.exp(), *history]).sin().sum()

        x = torch.randn(5, requires_grad=True)
        loss = checkpoint(block, x, use_reentrant=False)
        loss.backward()

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint

        history = []

        def block(x, before):
            return torch.cat([x.exp(), *before]).sin().sum()

        x = torch.randn(5, requires_grad=True)
        history.append(x.detach())
        loss = checkpoint(block, x, tuple(history), use_reentrant=False)
        loss.backward()


GROWS = frozenset({"append", "extend", "add", "update", "pop", "insert"})


def _changing(method: Method) -> list[tuple[ast.stmt | ast.expr, str]]:
    """The lines of a block that make its second run another one than its first."""
    own = {*method.names} | {
        each.id for each in method.inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    shared = {name for each in method.inner if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    found: list[tuple[ast.stmt | ast.expr, str]] = []
    for each in method.inner:
        if isinstance(each, ast.AugAssign | ast.Assign):
            target = each.target if isinstance(each, ast.AugAssign) else each.targets[0]
            root = _root(target)
            if (isinstance(target, ast.Name) and root in shared) or (
                not isinstance(target, ast.Name) and (root not in own - shared or root == "self")
            ):
                found.append((each, say("this changes what the next run sees")))
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            root = _root(each.func.value)
            if each.func.attr in GROWS and (root not in own - shared or root == "self"):
                found.append((each, say("this changes what the next run sees")))
            elif method.text(each.func).startswith(("random.", "np.random", "numpy.random", "time.")):
                found.append((each, say("this differs from run to run")))
    return found


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
