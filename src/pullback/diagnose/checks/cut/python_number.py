"""PB208: a tensor became a Python number on the way to the root."""

from __future__ import annotations

import ast
import math
from types import ModuleType

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, wrapped_operand
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.slices import Part, dotted, steps_of
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class PythonNumber(RootWithoutGraph):
    """A tensor became a Python number on the way to the root, and a number has no graph.

    ``x.item()``, ``float(x)``, ``x.tolist()`` and the functions of ``math`` give plain numbers. What is summed
    up from them is a ``float``, which has no ``backward()``; wrapped again by ``torch.tensor`` it is a tensor
    without a graph.

    Keep tensors on the way to the loss: ``total = total + loss``, ``torch.sqrt(x)``. Take the number only for
    logging, from a copy: ``running += loss.item()`` beside, not instead of, the loss.
    """

    code = "PB208"
    title = "A tensor became a Python number on the way to the root, and a number has no graph."
    kinds = ("number",)
    says = (*RootWithoutGraph.says, *(f"'{kind}' object has no attribute 'backward'" for kind in ("float", "int")))

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        if isinstance(case.error, RuntimeError):
            return say(
                "{text} (line {line}) is a Python number; the tensor {root} that is made of it afterwards has no "
                "graph.",
                text=cut.text,
                line=cut.node.lineno,
                root=root,
            )
        return say(
            "{text} (line {line}) is a Python number, and so is {root}: a number has no graph and no backward().",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("a plain number from here on")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        new = self._as_tensor(cut)
        if new is None:
            return Fix(say("Keep it a tensor: use the function of torch."), confidence="medium")
        edits: tuple[Edit, ...] = (cut.source.replaced(cut.node, new),)
        found = found_in(case)
        wrapped = isinstance(case.error, RuntimeError) and found.root is not None
        wraps = [step for step in steps_of(found.root) if self._wraps(step.node)] if wrapped and found.root else []
        wraps = [step for step in wraps if self._leads_to(step.part, cut)]
        for step in wraps:
            assert isinstance(step.node, ast.Call)
            if step.source.statement(step.node) is not cut.statement:
                argument = step.node.args[0]
                text = step.source.text(argument)
                text = f"torch.stack({text})" if isinstance(argument, ast.List | ast.ListComp) else text
                edits += (step.source.replaced(step.node, text),)
        arrays = self._arrays(case)
        if arrays is None:
            return Fix(
                say("Keep it a tensor; take the number only for logging."), f"{new}    # and torch instead of numpy"
            )
        edits += arrays
        return fix_of(
            cut,
            say("Keep it a tensor; take the number only for logging."),
            edits,
            "high" if not wraps and len(cuts) == 1 and isinstance(case.error, AttributeError) else "medium",
        )

    @staticmethod
    def _arrays(case: Case) -> tuple[Edit, ...] | None:
        """The edits for ``np.mean(losses)``, which is not for tensors; None where that cannot be rewritten."""
        root = found_in(case).root
        edits: tuple[Edit, ...] = ()
        for step in steps_of(root) if root is not None else ():
            func = step.node.func if isinstance(step.node, ast.Call) else None
            module = step.part.body.evaluated(func.value) if isinstance(func, ast.Attribute) else None
            if not isinstance(func, ast.Attribute) or not isinstance(step.node, ast.Call):
                continue
            if not isinstance(module, ModuleType) or module.__name__ != "numpy":
                continue
            if func.attr not in ("mean", "sum", "prod", "max", "min") or len(step.node.args) != 1 or step.node.keywords:
                return None
            text = f"torch.stack({step.source.text(step.node.args[0])}).{func.attr}()"
            edits += (step.source.replaced(step.node, text),)
        return edits

    @staticmethod
    def _leads_to(part: Part, cut: Cut) -> bool:
        """Whether the number is what a call makes a tensor of."""
        assert isinstance(part.node, ast.Call)
        return any(step.node is cut.node for step in steps_of(Part(part.node.args[0], part.body)))

    @staticmethod
    def _wraps(node: ast.expr) -> bool:
        func = node.func if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords else None
        return isinstance(func, ast.Attribute) and func.attr in ("tensor", "as_tensor", "FloatTensor", "Tensor")

    @staticmethod
    def _as_tensor(cut: Cut) -> str | None:
        call = cut.node
        if not isinstance(call, ast.Call) or cut.operand is None:
            return None
        if isinstance(call.func, ast.Attribute) and call.func.attr == "item":
            return wrapped_operand(cut)
        around = cut.source.parent(call)
        of_torch = isinstance(around, ast.Call) and (dotted(around.func) or "").startswith("torch.sparse")
        if isinstance(call.func, ast.Attribute) and call.func.attr == "tolist" and of_torch:
            return wrapped_operand(cut)
        if isinstance(call.func, ast.Name) and call.func.id == "float":
            return wrapped_operand(cut)
        if (
            isinstance(call.func, ast.Attribute)
            and cut.body.evaluated(call.func.value) is math
            and hasattr(torch, cut.name)
        ):
            return f"torch.{cut.name}({', '.join(cut.source.text(each) for each in call.args)})"
        return None

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)

        def loss_of(batch):
            return net(batch).pow(2).mean().item()

        loss = sum(loss_of(torch.randn(2, 4)) for _ in range(3)) / 3
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)

        def loss_of(batch):
            return net(batch).pow(2).mean()

        loss = sum(loss_of(torch.randn(2, 4)) for _ in range(3)) / 3
        loss.backward()
