"""PB821: torch.autograd.functional was given inputs that are no tensors."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import transform_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class FunctionalInputs(Cause):
    """``torch.autograd.functional`` differentiates by tensors: its inputs are one tensor or a tuple of tensors.

    Each entry of the tuple is one argument of the function: ``jacobian(f, (x, y))`` calls ``f(x, y)``. A list is not
    taken, nor a Python number, nor a numpy array.

    Convert first: ``torch.tensor(3.0)``, ``tuple(parameters)``, ``torch.from_numpy(a)``. What is not to be
    differentiated by is closed over: ``jacobian(lambda x: f(x, labels), x)``.
    """

    code = "PB821"
    title = "The inputs given to torch.autograd.functional are not tensors."
    says = ("must be either a Tensor or a tuple of Tensors but",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if not case.says("The inputs given to", "The v given to") or transform_in(case) is None or case.site is None:
            return None
        kind = found.group(1) if (found := re.search(r"<class '([\w.]+)'>", case.message)) else "?"
        second = case.says("The v given to")
        given = case.argument("v", 2) if second else case.argument("inputs", 1)
        edits: tuple[Edit, ...] = ()
        if given is not None:
            text = case.text(given)
            if kind == "list":
                tensors = isinstance(given, ast.List) and not any(isinstance(each, ast.Constant) for each in given.elts)
                new = f"tuple({text})" if tensors or not isinstance(given, ast.List) else f"torch.tensor({text})"
                edits = (case.site.source.replaced(given, new),)
            elif kind in {"float", "int"}:
                edits = (case.site.source.replaced(given, f"torch.tensor(float({text}))"),)
            elif kind == "numpy.ndarray":
                edits = (case.site.source.replaced(given, f"torch.from_numpy({text})"),)
        return self.found(
            say("{what} is of type {kind}, not a tensor or a tuple "
                "of tensors.", what="v" if second else "inputs", kind=kind),
            [case.mark(say("called here"))],
            Fix(
                say("Pass one tensor, or a tuple of tensors."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits and "torch" in case.site.module else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        points = [torch.zeros(2), torch.ones(2)]
        torch.autograd.functional.jacobian(lambda a, b: a * b, points)

    @staticmethod
    def good():
        import torch

        points = (torch.zeros(2), torch.ones(2))
        torch.autograd.functional.jacobian(lambda a, b: a * b, points)
