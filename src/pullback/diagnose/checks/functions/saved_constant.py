"""PB707: save_for_backward of something that is no tensor."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import Method, backward_of, called, saver_of
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SavedConstant(Cause):
    """ctx.save_for_backward was given something that is not a tensor.

    ``save_for_backward`` takes tensors and None: torch watches over their versions and frees them. Numbers, shapes,
    flags and lists are kept as attributes: ``ctx.k = k`` in ``forward``, ``ctx.k`` in ``backward``.

    A list of tensors is spread out: ``ctx.save_for_backward(*tensors)``. Tensors do not belong into attributes: they
    would not be checked for changes, and an output kept so is never freed.
    """

    code = "PB707"
    title = "ctx.save_for_backward was given something that is not a tensor."
    says = ("save_for_backward can only save",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = called(case)
        saver = saver_of(found[0]) if found else None
        said = re.search(r"argument (\d+) is of type (\w+)", case.message)
        if found is None or saver is None or said is None:
            return None
        kind, index, type_name = found[0], int(said[1]), said[2]
        calls = saver.calls("save_for_backward")
        call = calls[-1] if calls else None
        wrong = call.args[index] if call and index < len(call.args) else None
        if isinstance(wrong, ast.Starred):
            wrong = None
        text = saver.text(wrong) if wrong is not None else str(index)
        marks = [case.mark(say("{name} was applied here", name=kind.__name__))]
        if wrong is not None or call is not None:
            marks.append(
                saver.mark(wrong or call or saver.node, say("an object of type {kind} is saved here", kind=type_name))
            )
        many = type_name in ("list", "tuple")
        edits: tuple[Edit, ...] = ()
        if call is not None and wrong is not None and saver.own:
            edits = _spread(saver, wrong) if many else _moved(saver, backward_of(kind), call, index)
        fix = (
            say("Spread it out: ctx.save_for_backward(*{name}).", name=text)
            if many
            else say("Keep {name} as an attribute of ctx.", name=text)
        )
        return self.found(
            say(
                "{kind} saves {name}, a {type}, with save_for_backward, which keeps tensors only.",
                kind=kind.__name__,
                name=text,
                type=type_name,
            ),
            marks,
            Fix(
                fix,
                saver.source.code(*edits) or f"ctx.{text} = {text}",
                edits,
                "high" if edits and not many else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Shift(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, offset, scale):
                ctx.save_for_backward(x, scale)
                return (x + offset) ** 2 * scale

            @staticmethod
            def backward(ctx, grad):
                x, scale = ctx.saved_tensors
                return grad * 2 * x * scale, None, None

        x = torch.randn(4, requires_grad=True)
        Shift.apply(x, 0, 3.0).sum().backward()

    @staticmethod
    def good():
        import torch

        class Shift(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, offset, scale):
                ctx.save_for_backward(x)
                ctx.scale = scale
                return (x + offset) ** 2 * scale

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 2 * x * ctx.scale, None, None

        x = torch.randn(4, requires_grad=True)
        Shift.apply(x, 0, 3.0).sum().backward()


def _spread(saver: Method, wrong: ast.expr) -> tuple[Edit, ...]:
    inside = (
        ", ".join(map(saver.text, wrong.elts)) if isinstance(wrong, ast.List | ast.Tuple) else f"*{saver.text(wrong)}"
    )
    return saver.rewrite().replace(wrong, inside).edits()


def _moved(saver: Method, backward: Method | None, call: ast.Call, index: int) -> tuple[Edit, ...]:
    """From the saved tensors to an attribute, where it is saved and where it is used."""
    wrong = call.args[index]
    statement = saver.source.statement(call)
    if (
        not isinstance(wrong, ast.Name)
        or backward is None
        or statement is None
        or backward.source.file != saver.source.file
    ):
        return ()
    if any(isinstance(each, ast.Starred) for each in call.args):
        return ()
    name = wrong.id
    rewrite = saver.rewrite()
    kept = [saver.text(each) for place, each in enumerate(call.args) if place != index]
    new = f"{saver.text(call.func)}({', '.join(kept)})"
    assigned = f"{saver.context}.{name} = {name}"
    if saver.assigned_attribute(name):
        assigned = ""
    rewrite.replace(call, new)
    if assigned:
        rewrite.after(statement, assigned)
    return rewrite.edits() if _used(rewrite, backward, name, index, len(call.args)) else ()


def _used(rewrite: Rewrite, backward: Method, name: str, index: int, count: int) -> bool:
    """Change the uses in backward; False if they are written in a way that is not understood."""
    context = backward.context
    for node in backward.inner:
        if not (isinstance(node, ast.Attribute) and node.attr in ("saved_tensors", "saved_variables")):
            continue
        around = backward.source.parent(node)
        if isinstance(around, ast.Subscript) and isinstance(around.slice, ast.Constant):
            place = around.slice.value
            if place == index:
                rewrite.replace(around, f"{context}.{name}")
            elif isinstance(place, int) and place > index:
                rewrite.replace(around.slice, str(place - 1))
        elif isinstance(around, ast.Assign) and isinstance(around.targets[0], ast.Tuple):
            targets = around.targets[0]
            if len(targets.elts) != count or len(around.targets) != 1:
                return False
            names = [backward.text(each) for each in targets.elts]
            kept = [each for place, each in enumerate(names) if place != index]
            left = f"({kept[0]},)" if len(kept) == 1 else ", ".join(kept)
            taken = f"{names[index]} = {context}.{name}"
            if not kept:
                rewrite.replace(around, taken)
            else:
                rewrite.replace(targets, left)
                rewrite.after(around, taken)
        else:
            return False
    return True
