"""PB510: a function of NumPy, or of a library that uses it, on a tensor that requires grad."""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called, made, operand
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say

# Functions of NumPy whose torch namesake means something else, or nothing.
OTHER = frozenset({"array", "asarray", "ascontiguousarray", "save", "load", "copy", "isscalar", "size", "ndim"})


class NumpyFunction(Cause):
    """NumPy (and what is built on it: SciPy, matplotlib, scikit-learn) turns a tensor into an array first.

    An array has no gradient, so torch refuses for a tensor that requires grad. In a computation that is to be
    differentiated use the function of torch: ``torch.sqrt(x)`` for ``np.sqrt(x)``. To plot or to measure pass
    ``x.detach()``. ``tensor * array`` converts as well: make the array a tensor, ``torch.as_tensor(array)``.
    """

    code = "PB510"
    title = "A function that works on NumPy arrays was given a tensor that requires grad."
    says = ("can't call numpy() on tensor that requires grad", "can't call numpy() on variable that requires grad")

    def diagnose(self, case: Case) -> Diagnosis | None:
        site, call = case.site, case.call
        if site is None:
            return None
        if called(call) == "numpy" and call is not None and isinstance(call.func, ast.Attribute) and not call.args:
            return None
        node: ast.expr | None = call or site.node
        code, edits, sure = self._fix(case, node)
        tensors = self._tensors(case, node)
        listed = self._listed(case, node)
        name = case.text(tensors[0][0]) if tensors else case.text(listed) if listed else say("The argument")
        marks = [case.mark(say("{name} is turned into an array here", name=name))]
        if tensors:
            marks += made(case, tensors[0][1], tensors[0][0], say("{name} was made here", name=name))
        return self.found(
            say("{name} holds tensors that require grad; this converts them into an array of NumPy, which has no "
                "gradient.", name=name)
            if listed is not None and not tensors
            else say(
                "{name} requires grad; this converts it into an array of NumPy, which has no gradient.", name=name
            ),
            marks,
            Fix(
                say("Use the function of torch; or, if no gradient is needed, pass it without its history: detach()."),
                code or (f"{case.text(tensors[0][0])}.detach()" if tensors else ""), edits, sure,
            ),
            tensors=[case.subject(tensor, "tensor", case.text(each)) for each, tensor in tensors[:2]],
        )  # fmt: skip

    @staticmethod
    def _tensors(case: Case, node: ast.AST | None) -> list[tuple[ast.expr, Tensor]]:
        found: dict[int, tuple[ast.expr, Tensor]] = {}
        for each in ast.walk(node) if node is not None and case.site is not None else ():
            if isinstance(each, ast.Name | ast.Attribute | ast.Subscript):
                thing: Any = case.site.evaluated(each) if case.site is not None else None
                if issubclass(type(thing), Tensor) and thing.requires_grad:
                    found.setdefault(id(thing), (each, thing))
        return list(found.values())

    @staticmethod
    def _listed(case: Case, node: ast.expr | None) -> ast.expr | None:
        """The argument that is a list of tensors, one of which requires grad."""
        if not isinstance(node, ast.Call) or case.site is None:
            return None
        for each in node.args:
            thing: Any = case.site.evaluated(each)
            items = list(thing) if type(thing) in (list, tuple) else []
            if items and all(issubclass(type(item), Tensor) for item in items) and any(x.requires_grad for x in items):
                return each
        return None

    def _fix(self, case: Case, node: ast.expr | None) -> tuple[str, tuple[Edit, ...], Confidence]:
        assert case.site is not None
        source = case.site.source
        if isinstance(node, ast.BinOp):
            for side in (node.left, node.right):
                if type(case.site.evaluated(side)).__module__ == "numpy" or self._is_numpy(case, side):
                    edits = (source.replaced(side, f"torch.as_tensor({source.text(side)})"),)
                    return source.code(*edits), edits, "medium"
            return "", (), "low"
        if not isinstance(node, ast.Call):
            return "", (), "low"
        name = called(node)
        if self._is_numpy(case, node) and name not in OTHER and callable(getattr(torch, name, None)):
            edits = (source.replaced(node.func, f"torch.{name}"),)
            return source.code(*edits), edits, "high"
        if (listed := self._listed(case, node)) is not None:
            edits = (source.replaced(listed, f"[each.detach() for each in {source.text(listed)}]"),)
            return source.code(*edits).strip(), edits, "high"
        given = [(each, case.site.evaluated(each)) for each in node.args]
        wanted = [each for each, thing in given if issubclass(type(thing), Tensor) and thing.requires_grad]
        if not wanted and len(node.args) == 1 and isinstance(node.args[0], ast.Call | ast.BinOp):
            wanted = [node.args[0]]
        if not wanted:
            return "", (), "low"
        text = source.text(node)
        for each in wanted:
            text = text.replace(source.text(each), f"{operand(case, each)}.detach()", 1)
        edits = (source.replaced(node, text),)
        return source.code(*edits), edits, "high"

    @staticmethod
    def _is_numpy(case: Case, node: ast.expr) -> bool:
        func = node.func if isinstance(node, ast.Call) else None
        base = func.value if isinstance(func, ast.Attribute) else None
        thing = case.site.evaluated(base) if case.site is not None else None
        return isinstance(thing, ModuleType) and thing.__name__.partition(".")[0] == "numpy"

    @staticmethod
    def bad():
        import numpy as np
        import torch

        w = torch.rand(3, requires_grad=True)
        penalty = np.log1p(w)
        penalty.sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.rand(3, requires_grad=True)
        penalty = torch.log1p(w)
        penalty.sum().backward()
