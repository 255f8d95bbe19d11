"""PBA509: a gradient hook that returns nothing of what it computes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class HookWithoutReturn(Fault):
    """A tensor's hook computes another gradient, but does not return it: the gradient stays as it was.

    What a hook returns replaces the gradient; if it returns None, nothing is replaced. ``grad = grad * 0.1`` inside of
    the hook only gives another tensor the name ``grad``.

    End the hook with ``return grad``. Editing in place, ``grad.mul_(0.1)``, is no cure: torch may use the same tensor
    for other branches of the graph.
    """

    code = "PBA509"
    title = "A gradient hook computes another gradient and does not return it."
    hears = frozenset({"register_hook"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        hook = args[1] if len(args) > 1 else kwargs.get("hook")
        function = hook.__func__ if isinstance(hook, MethodType) else hook
        if call.spot is None or not isinstance(args[0] if args else None, Tensor):
            return
        if not isinstance(function, FunctionType) or function.__code__.co_name == "<lambda>":
            return
        code = function.__code__
        source = source_of(code.co_filename)
        tree = source.function_at(code.co_firstlineno, code.co_name)
        if not isinstance(tree, ast.FunctionDef) or tree.name != code.co_name:
            return
        place = int(isinstance(hook, MethodType))
        if len(tree.args.args) <= place:
            return
        name = tree.args.args[place].arg
        last = _rebound(tree, name)
        if last is None:
            return
        edits: tuple[Edit, ...] = (source.inserted_after(last, f"return {name}"),)
        audit.report(
            self.found(
                say(
                    "{hook} computes another gradient, which only it knows as {name}. It returns None, and so nothing "
                    "is replaced: the gradient stays as it was.",
                    hook=tree.name, name=name,
                ),
                [
                    Mark.at(Place(source.file, last.lineno, tree.name), say("not returned"), source.span(last)),
                    call.spot.mark(say("the hook is registered here")),
                ],
                Fix(say("Return it."), source.code(*edits).strip(), edits, "high"),
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def halve(gradient):
            gradient = gradient / 2

        weight = torch.ones(3, requires_grad=True)
        weight.register_hook(halve)
        weight.square().sum().backward()

    @staticmethod
    def good():
        import torch

        seen = []

        def halve(gradient):
            return gradient / 2

        def note(gradient):
            gradient = gradient.detach()
            seen.append(gradient.norm().item())

        weight = torch.ones(3, requires_grad=True)
        weight.register_hook(halve)
        weight.register_hook(note)
        weight.square().sum().backward()


def _rebound(tree: ast.FunctionDef, name: str) -> ast.Assign | None:
    """The last statement of a function, if it only gives its first parameter another value and nothing is returned."""
    if any(isinstance(each, ast.Return | ast.Yield | ast.Nonlocal | ast.Global) for each in ast.walk(tree)):
        return None
    last = tree.body[-1]
    if not isinstance(last, ast.Assign) or len(last.targets) != 1:
        return None  # += changes the gradient itself
    target = last.targets[0]
    if not isinstance(target, ast.Name) or target.id != name:
        return None
    uses = any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(last.value))
    return last if uses else None
