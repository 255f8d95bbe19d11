"""PB743: a pack hook that edits the tensor in place."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import Method
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import calls_of, function_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class PackInPlace(Cause):
    """The pack hook of saved tensors changed the tensor that it was given in place.

    What ``pack`` is given is the very tensor of the forward pass, not a copy. To change it would change the result of
    the program. Make a new tensor: ``t * 2`` for ``t.mul_(2)``, ``t.clone().clamp_(0)``, ``t.to(torch.float16)``.
    """

    code = "PB743"
    title = "The pack hook of saved tensors changed the tensor that it was given in place."
    says = ("pack hook is modifying its input in place",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        calls = calls_of(case, {"saved_tensors_hooks"})
        marks = [case.mark(say("a tensor is saved here"))]
        writes: list[tuple[Method, ast.Call]] = []
        for source, call in calls:
            named = next((each.value for each in call.keywords if each.arg == "pack_hook"), None)
            pack = named or (call.args[0] if call.args else None)
            method = function_of(source, pack)[0] if pack is not None else None
            found = [each for each in method.inner if _writes(each)] if method is not None else []
            if found and method is not None:
                marks.append(
                    Mark.at(Place(source.file, call.lineno, ""), say("the hooks are set here"), source.span(call))
                )
                marks += [method.mark(each, say("written in place here")) for each in found]
                writes += [(method, each) for each in found if isinstance(each, ast.Call)]
        edits: tuple[Edit, ...] = ()
        if len(writes) == 1 and writes[0][0].own:
            method, write = writes[0]
            func = write.func
            assert isinstance(func, ast.Attribute)
            name = method.text(func.value)
            statement = method.source.statement(write)
            edits = Rewrite(method.source).replace(func.value, f"{name}.clone()").edits()
            if isinstance(statement, ast.Expr) and statement.value is write:
                new = f"{name} = {name}.clone(){method.text(write)[len(name) :]}"
                edits = Rewrite(method.source).replace(write, new).edits()
        return self.found(
            say(
                "pack was given a tensor of the forward pass itself, and wrote into it; the program would compute on "
                "with the changed values."
            ),
            marks,
            Fix(
                say("Let pack work on a copy."),
                writes[0][0].source.code(*edits) if edits else "t.clone()",
                edits,  # backward then gets the changed values: whether that is meant is not known
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        def pack(tensor):
            tensor.clamp_(min=0)
            return tensor

        w = torch.randn(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = (w * 3).sin().sum()
        loss.backward()

    @staticmethod
    def good():
        import torch

        def pack(tensor):
            return tensor.clamp(min=0)

        w = torch.randn(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = (w * 3).sin().sum()
        loss.backward()


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign):
        return True
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr.endswith("_") and not node.func.attr.startswith("_")  # type: ignore[attr-defined]
