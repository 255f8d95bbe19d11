"""PB704: a gradient that is no tensor."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    backward_of,
    elements,
    nodes_of_functions,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

# What ends in something that is no tensor, by the type in the message.
ENDINGS = {
    "numpy.ndarray": ("numpy", "asarray", "array"),
    "float": ("item", "float"),
    "int": ("item", "int", "len"),
    "list": ("tolist", "list"),
}


class GradientKind(Cause):
    """The backward of a custom Function returned something that is neither a tensor nor None.

    Each gradient is a tensor of the shape of its input, or ``None``. A NumPy array, a Python number or a list is not
    converted. Compute with torch's operations where you can: ``2 * x * g`` rather than ``(2 * x * g).numpy()``. Where
    NumPy or SciPy does the work, convert at the end: ``torch.from_numpy(result).to(g)``, which takes dtype and device
    over from the incoming gradient.
    """

    code = "PB704"
    title = "A Function's backward returned something that is not a tensor."
    says = ("expected Variable or None (got",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"\(got ([\w.]+)\)", case.message)
        type_name = said[1] if said else "?"
        candidates = {node._forward_cls: node for node in reversed(nodes_of_functions(case))}
        guilty = {kind: found for kind in candidates if (found := _culprits(backward_of(kind), type_name))}
        kinds = list(guilty) or list(candidates)
        if not kinds:
            return None
        kind = kinds[0]
        method = backward_of(kind)
        if method is None:
            return None
        wrong = guilty.get(kind) or method.returns
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, candidates[kind])]
        marks += [
            method.mark(each, say("an object of type {kind} is returned here", kind=type_name)) for each in wrong[:3]
        ]
        new = [(each, text) for each in wrong if (text := _mended(method, each, type_name))]
        rewrite = method.rewrite()
        for each, text in new:
            rewrite.replace(each, text)
        edits = rewrite.edits() if method.own and len(new) == len(wrong) and len(kinds) == 1 else ()
        return self.found(
            say(
                "{kind}.backward returned a {type}. What it returns is passed on as gradients, and these are tensors.",
                kind=kind.__name__,
                type=type_name,
            ),
            marks,
            Fix(
                say("Return a tensor: leave the conversion out, or convert back with torch.from_numpy(...).to(g)."),
                method.source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if len(kinds) == 1 else "medium",
            apart="" if len(kinds) == 1 else say("Which of several Functions it was, torch does not say."),
        )

    @staticmethod
    def bad():
        import numpy as np
        import torch

        class Sine(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.from_numpy(np.sin(x.detach().numpy()))

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad.numpy() * np.cos(x.detach().numpy())

        x = torch.randn(4, requires_grad=True)
        Sine.apply(x).sum().backward()

    @staticmethod
    def good():
        import numpy as np
        import torch

        class Sine(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.from_numpy(np.sin(x.detach().numpy()))

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                result = grad.numpy() * np.cos(x.detach().numpy())
                return torch.from_numpy(result)

        x = torch.randn(4, requires_grad=True)
        Sine.apply(x).sum().backward()


def _written(method: Method, value: ast.expr) -> ast.expr:
    """What a name stands for that is returned."""
    made = method.assigned(value.id) if isinstance(value, ast.Name) else None
    return made.value if made is not None else value


def _culprits(method: Method | None, type_name: str) -> list[ast.expr]:
    """The gradients that are written so that they are of this type."""
    if method is None:
        return []
    found: list[ast.expr] = []
    for value in method.returns:
        if type_name == "list" and isinstance(value, ast.List):
            found.append(value)
            continue
        found += [each for each in elements(value) if _is_of(method, each, type_name)]
    return found


def _is_of(method: Method, value: ast.expr, type_name: str) -> bool:
    made = _written(method, value)
    if isinstance(made, ast.Constant):
        return type(made.value).__name__ == type_name
    if isinstance(made, ast.List | ast.ListComp):
        return type_name == "list"
    if isinstance(made, ast.Dict):
        return type_name == "dict"
    if isinstance(made, ast.Call):
        name = made.func.attr if isinstance(made.func, ast.Attribute) else getattr(made.func, "id", "")
        if name in ("from_numpy", "as_tensor", "tensor"):
            return False
        if name in ENDINGS.get(type_name, ()):
            return True
    if type_name == "numpy.ndarray":
        text = method.text(made)
        return ("np." in text or ".numpy()" in text) and "from_numpy" not in text and "torch.tensor" not in text
    return False


def _mended(method: Method, value: ast.expr, type_name: str) -> str:
    """The gradient as a tensor."""
    if type_name == "list" and isinstance(value, ast.List):
        return ", ".join(map(method.text, value.elts))
    if type_name == "numpy.ndarray":
        kept = value
        while _is_conversion(kept):
            kept = kept.func.value  # type: ignore[attr-defined]
        if kept is not value:
            return method.text(kept)
        gradient = method.names[1] if len(method.names) > 1 else "g"
        return f"torch.from_numpy({method.text(value)}).to({gradient})"
    return ""


def _is_conversion(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("numpy", "detach", "cpu")
        and not value.args
    )
