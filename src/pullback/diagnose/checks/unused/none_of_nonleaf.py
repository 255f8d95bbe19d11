"""PB610: .grad of a tensor that is no leaf."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.leaves import as_leaf, fresh_leaf_inside
from pullback.diagnose.evidence.absent.values import NoneGradient, none_gradient
from pullback.diagnose.evidence.definitions import Definition, called, definitions, made
from pullback.diagnose.evidence.freed.flow import Loop, written_in
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoneOfNonleaf(Cause):
    """Gradients are kept for leaves only: a computed tensor has ``.grad`` None after ``backward``.

    A leaf is what the program made itself with ``requires_grad=True``, or a parameter. ``w = w - lr * w.grad`` makes a
    new tensor that is computed from the old one: the name ``w`` stands no longer for the leaf. So does
    ``torch.randn(3, requires_grad=True).to(device)`` or ``... * 0.01``: the name is given to the result, and the leaf
    has none.

    Update in place, out of autograd's sight: ``with torch.no_grad(): w -= lr * w.grad``, then ``w.grad = None``. Make
    a leaf last: ``(torch.randn(3) * 0.01).requires_grad_()``. If the gradient of an intermediate result is wanted,
    call ``h.retain_grad()`` before the backward pass.

    ``w.data = ...`` hides the change from autograd, and with it every check that would notice a mistake.
    """

    code = "PB610"
    title = "The gradient of a computed tensor was used: only leaves keep theirs."
    says = ("nonetype", "attribute of a tensor that is not a leaf")
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = none_gradient(case)
        if found is None or found.tensor is None or found.tensor.is_leaf or case.site is None:
            return None
        name = case.text(found.owner) if found.owner is not None else "w"
        steps = definitions(case, found.owner, tensor=found.tensor)
        step = steps[0] if steps else None
        rebound = step is not None and isinstance(step.statement, ast.Assign | ast.AugAssign) and _refers(step, name)
        what = say("{name} became a computed tensor here", name=name)
        marks = [case.mark(say("{name}.grad is None here", name=name))]
        own = case.line_of(found.tensor.grad_fn)
        if rebound and step is not None and (own is None or own.line == step.value.lineno):
            marks.append(step.mark(what))
        else:
            marks += made(case, found.tensor, found.owner, what)
        update = rebound and step is not None and _is_update(step)
        code, edits = self._fix(case, found, step, update=update)
        cause = (
            say(
                "{name} is no leaf any more: the assignment made a new tensor ({node}) computed from the old {name}. "
                "backward() keeps gradients for leaves only, so the new {name} has none.",
                name=name, node=found.tensor.grad_fn and found.tensor.grad_fn.name(),
            )
            if rebound
            else say(
                "{name} is the result of an operation ({node}), not a leaf; backward() passes its gradient on and does "
                "not keep it.",
                name=name, node=found.tensor.grad_fn and found.tensor.grad_fn.name(),
            )
        )  # fmt: skip
        text = (
            say("Change the leaf in place under no_grad, and clear its gradient.")
            if update
            else say("Make the new value a leaf of its own in each turn.")
            if rebound and step is not None and _stepped_in_loop(step, name)
            else say("Keep the gradient of the new tensor with retain_grad(), or read that of the leaf.")
            if rebound
            else say("Make the leaf last, or keep the gradient with retain_grad() before backward().")
        )
        return self.found(
            cause,
            marks,
            Fix(text, code, edits, "high" if edits else "medium"),
            tensors=[case.subject(found.tensor, "computed", name)],
            useless=[say("retain_graph=True: it keeps the graph for another pass, not the gradient")],
        )

    @staticmethod
    def _fix(case: Case, found: NoneGradient, step: Definition | None, *, update: bool) -> tuple[str, tuple[Edit, ...]]:
        name = case.text(found.owner)
        if step is None:
            return f"{name}.retain_grad()    # before backward()", ()
        source = step.scene.source
        edits: tuple[Edit, ...] = ()
        if update and isinstance(step.statement, ast.Assign):
            edits = (in_place(source, step.statement, name),)
        elif isinstance(step.statement, ast.Assign) and _stepped_in_loop(step, name):
            edits = (source.replaced(step.value, f"{_before_dot(source, step.value)}.detach().requires_grad_()"),)
        elif fresh_leaf_inside(step.value):
            edits = (source.replaced(step.value, as_leaf(source, step.value)),)
        elif isinstance(step.statement, ast.Assign) and step.whole and called(step.value) != "detach":
            inside = source.text(step.statement.targets[0])
            edits = (source.inserted_after(step.statement, f"{inside}.retain_grad()"),)
        return source.code(*edits) or f"{name}.retain_grad()    # before backward()", edits

    @staticmethod
    def bad():
        import warnings

        import torch

        warnings.simplefilter("ignore")
        weight = torch.randn(3, requires_grad=True)
        x = torch.randn(8, 3)
        for _ in range(3):
            error = (x @ weight - 1).square().mean()
            error.backward()
            weight = weight - 0.05 * weight.grad

    @staticmethod
    def good():
        import torch

        weight = torch.randn(3, requires_grad=True)
        x = torch.randn(8, 3)
        for _ in range(3):
            error = (x @ weight - 1).square().mean()
            error.backward()
            with torch.no_grad():
                weight -= 0.05 * weight.grad
            weight.grad = None


def _refers(step: Definition, name: str) -> bool:
    """Whether the assignment to a name reads it."""
    last = name.rpartition(".")[2]
    return any(
        step.scene.source.text(each) == name or (isinstance(each, ast.Attribute) and each.attr == last)
        for each in ast.walk(step.value)
        if isinstance(each, ast.Name | ast.Attribute)
    )


def _stepped_in_loop(step: Definition, name: str) -> bool:
    """Whether a loop steps a name along its gradient, and then binds it once more: ``x = x.clamp(0, 1)``."""
    loop = next((each for each in step.scene.source.around(step.value) if isinstance(each, Loop)), None)
    targets = written_in(loop).get(name, []) if loop is not None else []
    statements = [step.scene.source.statement(each) for each in targets]
    return any(
        isinstance(each, ast.Attribute) and each.attr == "grad"
        for statement in statements if statement is not None
        for each in ast.walk(statement)
    )  # fmt: skip


def _before_dot(source: Source, node: ast.expr) -> str:
    text = source.text(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def _is_update(step: Definition) -> bool:
    """Whether an assignment steps along a gradient: ``w = w - lr * w.grad``, ``w = w - lr * g``."""
    words = [
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(step.value)
        if isinstance(each, ast.Attribute | ast.Name)
    ]
    return any(word == "g" or "grad" in word for word in words)


def in_place(source: Source, statement: ast.Assign, name: str) -> Edit:
    """The update of a leaf as it should be written, instead of an assignment that binds its name anew."""
    value, indent = statement.value, source.indent(statement.lineno)
    line = f"{name}.copy_({source.text(value)})"
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub | ast.Add) and source.text(value.left) == name:
        line = f"{name} {'-' if isinstance(value.op, ast.Sub) else '+'}= {source.text(value.right)}"
    text = f"{indent}with torch.no_grad():\n{indent}    {line}\n{indent}{name}.grad = None"
    return Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, text)
