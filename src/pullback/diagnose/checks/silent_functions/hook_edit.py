"""PBA505: a hook that edits a gradient which others share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.births import watch
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class HookEdit(Fault):
    """A hook changes the gradient that it is given in place, and the same tensor goes to another branch too.

    The backward of ``a + b`` hands one and the same tensor to both branches. A hook on ``b`` that multiplies it in
    place multiplies the gradient of ``a`` as well. Which branches share a tensor depends on the operations, so that it
    works until the model changes.

    Return a new tensor from the hook: ``return g * 100``. The one that is returned takes the place of the gradient, for
    this branch only.
    """

    code = "PBA505"
    title = "A gradient hook edits its gradient in place, and another branch shares that tensor."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        watch(audit).begin(audit, backward)

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        shared = watch(audit).shared
        if not shared or not audit.affordable:
            return
        children = {
            backward.nodes[index].next_functions[place] for index, place in shared if index < len(backward.nodes)
        }
        for name, tensor in _hooked(audit):
            edge = torch.autograd.graph.get_gradient_edge(tensor)
            if (edge.node, edge.output_nr) in children:
                for hook in tuple(tensor._backward_hooks.values()):  # type: ignore[union-attr]
                    found = _edit_in(hook)
                    if found is not None:
                        audit.report(self._finding(audit, backward, name, tensor, *found))

    def _finding(
        self, audit: Audit, backward: Backward, name: str, tensor: Tensor, source: Source, node: ast.AST, function: str
    ) -> Diagnosis:
        line = node.lineno  # type: ignore[attr-defined]
        span = source.span(node)  # type: ignore[arg-type]
        marks = [Mark.at(Place(source.file, line, function), say("the gradient is edited in place here"), span)]
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        code, edits = _mended(source, node)
        return self.found(
            say(
                "The hook on {name} changes its gradient in place. The same tensor was handed to another branch: the "
                "gradient there is changed too.",
                name=name,
            ),
            marks,
            Fix(say("Return a new tensor from the hook."), code, edits, "high" if edits else "medium"),
            tensors=[audit.subject(tensor, "hooked", name)],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        first, second = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        left, right = first.tanh(), second.tanh()

        def limit(grad):
            grad.clamp_(-0.1, 0.1)

        right.register_hook(limit)
        ((left + right) ** 2).sum().backward()

    @staticmethod
    def good():
        import torch

        first, second = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        left, right = first.tanh(), second.tanh()

        def limit(grad):
            return grad.clamp(-0.1, 0.1)

        right.register_hook(limit)
        ((left + right) ** 2).sum().backward()


def _hooked(audit: Audit) -> Iterator[tuple[str, Tensor]]:
    """The tensors with hooks that the user's variables and modules hold."""
    seen: set[int] = set()
    for frame in audit.frames():
        for name, thing in (*frame.local.items(), *frame.module.items()):
            if issubclass(type(thing), Tensor) and id(thing) not in seen and _has_hooks(thing):
                seen.add(id(thing))
                yield name, thing
    for name, module in audit.modules():
        for path, parameter in module.named_parameters():
            if id(parameter) not in seen and _has_hooks(parameter):
                seen.add(id(parameter))
                yield f"{name}.{path}", parameter


def _has_hooks(tensor: Tensor) -> bool:
    return bool(tensor._backward_hooks) and tensor.requires_grad


def _edit_in(hook: Any) -> tuple[Source, ast.AST, str] | None:
    """The first part of a hook that changes its argument in place."""
    code = getattr(hook, "__code__", None)
    if code is None or not code.co_argcount:
        return None
    source = source_of(code.co_filename)
    scope = source.function_at(code.co_firstlineno, code.co_name)
    if isinstance(scope, ast.Module):
        return None
    name = code.co_varnames[1 if hasattr(hook, "__self__") and code.co_argcount > 1 else 0]
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == name for each in node.targets
        ):
            return None  # it goes on with another tensor
    found = next((node for node in ast.walk(scope) if _changes(node, name)), None)
    return None if found is None else (source, found, code.co_qualname)


def _changes(node: ast.AST, name: str) -> bool:
    def own(each: ast.AST) -> bool:
        inner = each.value if isinstance(each, ast.Subscript) else each
        return isinstance(inner, ast.Name) and inner.id == name

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        attr = node.func.attr
        return own(node.func.value) and attr.endswith("_") and not attr.endswith("__") and attr != "requires_grad_"
    if isinstance(node, ast.AugAssign):
        return own(node.target)
    return isinstance(node, ast.Assign) and any(isinstance(each, ast.Subscript) and own(each) for each in node.targets)


def _mended(source: Source, node: ast.AST) -> tuple[str, tuple[Edit, ...]]:
    general = "def hook(g):\n    return g * 100    # a new tensor"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.lineno != node.end_lineno:
        return general, ()
    given = ", ".join(map(source.text, [*node.args, *node.keywords]))
    call = f"{source.text(node.func.value)}.{node.func.attr[:-1]}({given})"
    above = source.parent(node)
    if isinstance(above, ast.Return | ast.Lambda):
        return call, (source.replaced(node, call),)
    scope = source.scope(node)
    if isinstance(above, ast.Expr) and isinstance(scope, ast.FunctionDef) and scope.body[-1] is above:
        return f"return {call}", (source.replaced(node, f"return {call}"),)
    return general, ()
