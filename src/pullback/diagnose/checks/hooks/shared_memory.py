"""PB734: a gradient edited in place whose elements share memory."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame, bounds_at
from pullback.diagnose.evidence.functions.classes import Method, asked_marks, running
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import hook_frame, registered
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}


class SharedMemory(Cause):
    """A hook, or the backward of a Function, edited the gradient that it was given in place.

    A gradient that comes in is not yours: the gradient of ``sum()`` is one number that is expanded to the
    whole shape, so all its elements share one place in memory, and other branches of the graph may use the same tensor.
    Torch refuses the first; the second goes wrong silently.

    Compute a new tensor and return it: ``g.clamp(max=1)`` for ``g.clamp_(max=1)``, ``g * 2`` for ``g *= 2``. ``clone``
    first if you want to write into parts of it.
    """

    code = "PB734"
    title = "A gradient that came in was edited in place, and its elements share memory."
    says = ("more than one element of the written-to tensor refers to a single memory location",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        inside = running(case)
        frame = inside[1] if inside is not None else hook_frame(case)
        site = case.site
        if frame is None or site is None or frame.place != site.place:
            return None
        statement = _statement(site)
        target = _target(site.node, statement)
        name = site.source.text(target) if target is not None else ""
        method = _method(site.source, site.line, site.code.co_name, site.node)
        root = target
        while isinstance(root, ast.Subscript | ast.Attribute | ast.Call):
            root = root.value if not isinstance(root, ast.Call) else root.func
        if method is None or target is None or not isinstance(root, ast.Name):
            return None
        marks = [case.mark(say("{name} is changed in place here", name=name))]
        if inside is None:
            hooks = registered(
                case, {"register_hook", "register_full_backward_hook", "register_post_accumulate_grad_hook"}
            )
            mine = [each for each in hooks if each.hook is not None and each.hook.node is method.node]
            marks += [each.mark(say("the hook is registered here")) for each in mine[:2]]
        marks += asked_marks(case)
        edits = _edits(method, site.node, statement, target)
        return self.found(
            say(
                "{name} is the gradient as it came in: a single number expanded to its shape, as sum() makes "
                "it. All its elements are one place in memory, so it cannot be changed in place.",
                name=name,
            ),
            marks,
            Fix(
                say("Compute a new tensor instead of changing {name}, and return it.", name=name),
                site.source.code(*edits) or f"{name} = {name}.clone()",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        def scale(grad):
            grad.mul_(0.5)
            return grad

        x = torch.randn(5, requires_grad=True)
        hidden = x.sin()
        hidden.register_hook(scale)
        hidden.sum().backward()

    @staticmethod
    def good():
        import torch

        def scale(grad):
            return grad * 0.5

        x = torch.randn(5, requires_grad=True)
        hidden = x.sin()
        hidden.register_hook(scale)
        hidden.sum().backward()


def _statement(site: Frame) -> ast.stmt | None:
    """The statement that failed; also one of several on its line."""
    bounds = bounds_at(site.code, site.instruction)
    for each in ast.walk(site.source.tree):
        if isinstance(each, ast.AugAssign):
            own = (each.lineno, each.col_offset, each.end_lineno, each.end_col_offset)
            if own == bounds:
                return each
    return site.statement


def _target(node: ast.expr | None, statement: ast.stmt | None) -> ast.expr | None:
    """What is written to."""
    if isinstance(statement, ast.AugAssign):
        return statement.target
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return node.func.value
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return statement.targets[0].value
    return None


def _method(source: Source, line: int, name: str, node: ast.expr | None) -> Method | None:
    found = source.function_at(line, name)
    if name == "<lambda>" and node is not None:
        found = next((each for each in source.around(node) if isinstance(each, ast.Lambda)), found)
    return None if isinstance(found, ast.Module) else Method(source, found, name)


def _edits(method: Method, node: ast.expr | None, statement: ast.stmt | None, target: ast.expr) -> tuple[Edit, ...]:
    if not method.own or not isinstance(target, ast.Name):
        return ()
    rewrite = Rewrite(method.source)
    text = method.text(target)
    returned = any(
        isinstance(each, ast.Name) and each.id == text for value in method.returns for each in ast.walk(value)
    )
    if isinstance(statement, ast.AugAssign) and type(statement.op) in OPERATORS:
        rewrite.replace(statement, f"{text} = {text} {OPERATORS[type(statement.op)]} {method.text(statement.value)}")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = method.text(node)[len(text) + 1 + len(node.func.attr) :]
        new = f"{text}.{node.func.attr.rstrip('_')}{called}"
        if isinstance(statement, ast.Expr) and statement.value is node:
            rewrite.replace(node, f"{text} = {new}")
        else:
            return rewrite.replace(node, new).edits()  # it is returned, or assigned
    else:
        return ()
    if not returned:
        if isinstance(method.node, ast.Lambda) or method.returns or statement is not method.body[-1]:
            return ()
        rewrite.after(statement, f"return {text}")
    return rewrite.edits()
