"""PB209: the values went through numpy on the way to the root."""

from __future__ import annotations

import ast
from types import ModuleType

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class NumpyRoundTrip(RootWithoutGraph):
    """The values went through numpy on the way to the root, and numpy records nothing.

    ``x.detach().numpy()`` is a plain array: what numpy computes with it is no part of any graph, and
    ``torch.from_numpy`` makes a new tensor without history of the result. Torch refuses ``x.numpy()`` where
    ``x`` requires grad for just this reason; the ``detach()`` that it suggests takes the error away and the
    gradient with it.

    Use the operation of torch instead (``np.clip`` is ``torch.clamp``; most have the same name). Where there is
    none, write a ``torch.autograd.Function`` with the numpy step in ``forward`` and its derivative in
    ``backward``.
    """

    code = "PB209"
    title = "The values went through numpy on the way to the root, where nothing is recorded."
    kinds = ("numpy",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) takes the values of {operand} out of torch; what comes back has no history, "
            "and neither "
            "has {root}.",
            text=cut.text,
            line=cut.node.lineno,
            operand=cut.operand_text,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("the values leave torch here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say(
            "Use the operation of torch instead of numpy's, or wrap the numpy step in a torch.autograd.Function with a "
            "backward of its own."
        )
        outer, new = self._in_torch(cut)
        if outer is None:
            return Fix(text, self._function(), (), "medium")
        return fix_of(cut, text, (cut.source.replaced(outer, new),), "high" if len(cuts) == 1 else "medium")

    @staticmethod
    def _in_torch(cut: Cut) -> tuple[ast.expr | None, str]:
        """``torch.from_numpy(np.clip(x.detach().numpy(), -1, 1))`` as ``torch.clamp(x, -1, 1)``."""
        source, operand = cut.source, cut.operand
        inner = source.parent(cut.node)
        if operand is None or not isinstance(inner, ast.Call):
            return None, ""
        if _enters(inner):
            return inner, source.text(operand)
        func, back = inner.func, source.parent(inner)
        if not isinstance(func, ast.Attribute) or not isinstance(back, ast.Call) or not _enters(back):
            return None, ""
        module = cut.body.evaluated(func.value)
        name = {"clip": "clamp"}.get(func.attr, func.attr)
        if (
            not isinstance(module, ModuleType)
            or module.__name__ != "numpy"
            or not hasattr(torch, name)
            or inner.keywords
        ):
            return None, ""
        arguments = [source.text(operand if each is cut.node else each) for each in inner.args]
        return back, f"torch.{name}({', '.join(arguments)})"

    @staticmethod
    def _function() -> str:
        return (
            "class Step(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n"
            "        return torch.from_numpy(numpy_step(x.detach().numpy()))\n\n"
            "    @staticmethod\n"
            "    def backward(ctx, grad):\n"
            "        (x,) = ctx.saved_tensors\n"
            "        return grad * derivative(x)"
        )

    @staticmethod
    def bad():
        import numpy as np
        import torch

        net = torch.nn.Linear(4, 1)
        out = net(torch.randn(3, 4))
        values = np.tanh(out.detach().cpu().numpy())
        loss = torch.tensor(values).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        out = net(torch.randn(3, 4))
        values = torch.tanh(out)
        loss = values.mean()
        loss.backward()


def _enters(call: ast.Call) -> bool:
    """Whether a call makes a tensor of an array."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("from_numpy", "tensor", "as_tensor", "Tensor", "FloatTensor") and len(call.args) == 1
