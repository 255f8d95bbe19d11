"""PBA137: ``.grad`` of a tensor that is no leaf."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.training.loop import own_line
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.language import say


class NonleafGrad(Fault):
    """``.grad`` of a computed tensor was read: only leaves keep their gradient, so it is ``None``.

    A leaf is a tensor that was not computed from others that require grad. ``torch.randn(3,
    requires_grad=True).cuda()`` is *computed*: the leaf is the tensor before ``.cuda()``, which nobody holds. The
    same goes for ``.to()``, ``.double()``, ``* 0.01`` and ``.reshape()``.

    Ask for the gradient last: ``torch.randn(3, device="cuda", requires_grad=True)`` or ``….cuda().requires_grad_()``.
    For a tensor in the middle of a computation call ``h.retain_grad()`` before the pass, or use
    ``torch.autograd.grad(loss, h)``. ``retain_graph=True`` is something else and does not help.
    """

    code = "PBA137"
    title = "The gradient of a tensor that is not a leaf was read: it is None."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "attribute of a Tensor that is not a leaf" not in message:
            return
        frames = audit.frames()
        if not frames:
            return
        frame = frames[0]
        found = self._read(frame)
        if found is None:
            return
        node, tensor = found
        name = frame.source.text(node.value)
        value = audit.tape.value_of(tensor)
        spot = value.maker.spot if value is not None and value.maker is not None else None
        marks = [frame.mark(say("{name}.grad is None", name=name))]
        edits: tuple[Edit, ...] = ()
        code = f"{name}.retain_grad()"
        if spot is not None:
            marks.append(spot.mark(say("computed here: the result is no leaf")))
            statement = spot.statement
            leaf_edit = _asks_too_early(statement) if isinstance(statement, ast.Assign) else None
            if leaf_edit is not None and statement is not None:
                assert isinstance(statement, ast.Assign)
                edits = (spot.source.replaced(statement.value, leaf_edit),)
                code = f"{name} = {leaf_edit}"
            elif (
                isinstance(statement, ast.Assign)
                and own_line(spot.source, statement)
                and spot.code is frame.code
                and spot.source.text(statement.targets[0]) == name
            ):
                edits = (spot.source.inserted_after(statement, f"{name}.retain_grad()"),)
        audit.report(
            self.found(
                say(
                    "{name} was computed from a tensor that requires grad, so it is no leaf, and torch keeps no "
                    "gradient for it.",
                    name=name,
                ),
                marks,
                Fix(
                    say("Ask for its gradient before the pass, or make it a leaf."),
                    code,
                    edits,
                    "high" if edits else "medium",
                ),
                tensors=[audit.subject(tensor, "read", name)],
                useless=[say("retain_graph=True: it keeps the graph, not the gradients of its tensors")],
            )
        )

    @staticmethod
    def _read(frame: Frame) -> tuple[ast.Attribute, Tensor] | None:
        """The tensor whose gradient a line reads, with the expression."""
        statement = frame.statement
        nodes = (
            [frame.node] if isinstance(frame.node, ast.Attribute) else list(ast.walk(statement)) if statement else []
        )
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == "grad":
                tensor = frame.evaluated(node.value)
                if isinstance(tensor, Tensor) and not tensor.is_leaf and not tensor.retains_grad:
                    return node, tensor
        return None

    @staticmethod
    def bad():
        import torch

        weight = torch.ones(4, requires_grad=True) * 0.1
        loss = (weight - 1).square().sum()
        loss.backward()
        step = weight.grad

    @staticmethod
    def good():
        import torch

        weight = (torch.ones(4) * 0.1).requires_grad_()
        loss = (weight - 1).square().sum()
        loss.backward()
        step = weight.grad


def _asks_too_early(statement: ast.Assign) -> str | None:
    """``make(..., requires_grad=True).more()`` as it should read: ``make(...).more().requires_grad_()``."""
    makers = [
        node
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Call) and any(each.arg == "requires_grad" for each in node.keywords)
    ]
    if len(makers) != 1 or makers[0] is statement.value:
        return None
    copy = ast.parse(ast.unparse(statement.value), mode="eval").body
    for node in ast.walk(copy):
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg != "requires_grad"]
    text = ast.unparse(copy)
    return f"{text}.requires_grad_()" if isinstance(copy, ast.Call | ast.Name) else f"({text}).requires_grad_()"
