"""PB115: the loss is None."""

from __future__ import annotations

import ast

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import (
    Definition,
    called,
    definitions,
    function_of,
    mark_node,
    own_statements,
)
from pullback.diagnose.evidence.seeds.objects import backward_of
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix, Mark
from pullback.language import say

# Methods that return nothing.
NOTHING = ("backward", "append", "extend", "step", "zero_grad", "update", "train_step")


class RootIsNone(Cause):
    """The loss is None: what should have made it returned nothing.

    A function without ``return`` returns None, and so do ``loss.backward()`` and ``list.append``: after
    ``loss = criterion(output, target).backward()`` the name ``loss`` stands for nothing. A ``forward`` that only
    returns in one branch returns None in the other. A model of transformers leaves ``outputs.loss`` at None unless it
    was given ``labels=``.
    """

    code = "PB115"
    title = "backward() was called on None: what should have computed the loss returned nothing."
    says = ("'nonetype' object has no attribute 'backward'",)
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = backward_of(case)
        if found is None or found[0] is not None or case.site is None:
            return None
        node = found[1]
        text = case.text(node)
        marks = [case.mark(say("{name} is None here", name=text))]
        steps = definitions(case, node)
        last = steps[-1] if steps else None
        if last is not None:
            marks.append(last.mark(say("{name} got its value here", name=text)))
        cause, extra, code, edits, sure = self._reason(case, node, last)
        marks += extra
        return self.found(
            cause or say("{name} is None.", name=text),
            marks,
            Fix(say("Make sure that a tensor comes back."), code or "return loss", edits, sure),
            confidence="high" if cause else "medium",
            apart="" if cause else say("Where {name} got its value.", name=text),
        )

    def _reason(
        self, case: Case, node: ast.expr | None, last: Definition | None
    ) -> tuple[str, list[Mark], str, tuple[Edit, ...], Confidence]:
        assert case.site is not None
        value = last.value if last is not None else node
        scene_value = last.scene.evaluated if last is not None else case.site.evaluated
        if isinstance(value, ast.Call):
            name = called(value)
            thing = scene_value(value.func)
            if isinstance(value.func, ast.Call):  # Criterion()(x)
                kind = scene_value(value.func.func)
                thing = kind.forward if isinstance(kind, type) and issubclass(kind, nn.Module) else None
            function = function_of(thing)
            if function is not None:
                code = function.__code__
                return self._forgotten(code.co_filename, code.co_firstlineno, name or "forward", code.co_name)
            if name in NOTHING and last is not None and isinstance(value.func, ast.Attribute):
                source = last.scene.source
                inner = source.text(value.func.value)
                if name == "backward":
                    edit = source.replaced(value, inner)
                    return (
                        say("backward() returns nothing, so its result is None, and not the loss."),
                        [], f"{source.code(edit)}", (edit,), "high",
                    )  # fmt: skip
                return say("{name}() returns nothing.", name=name), [], "", (), "medium"
        if isinstance(node, ast.Attribute) and node.attr == "loss":
            owner = case.text(node.value)
            return (
                say("{name} has no loss: the model was given no labels, or None for them.", name=owner),
                [each.mark(say("{name} was computed here", name=owner)) for each in definitions(case, node.value)[:1]],
                f"{owner} = model(..., labels=labels)", (), "medium",
            )  # fmt: skip
        if isinstance(value, ast.Constant) and value.value is None:
            return say("It was set to None, and to nothing else since."), [], "", (), "medium"
        return "", [], "", (), "low"

    @staticmethod
    def _forgotten(
        file: str, line: int, name: str, own: str
    ) -> tuple[str, list[Mark], str, tuple[Edit, ...], Confidence]:
        source = source_of(file)
        scope = source.function_at(line, own)
        if isinstance(scope, ast.Module | ast.Lambda):
            return "", [], "", (), "low"
        valued = [each for each in own_statements(scope) if isinstance(each, ast.Return) and each.value is not None]
        end = scope.body[-1]
        marks = [mark_node(source, end, say("{name} ends here without a return", name=name), own)]
        edits: tuple[Edit, ...] = ()
        target = end.targets[0] if isinstance(end, ast.Assign) and len(end.targets) == 1 else None
        if isinstance(target, ast.Name):
            edits = (source.inserted_after(end, f"return {target.id}"),)
        elif isinstance(end, ast.Expr) and called(end.value) not in (
            "backward",
            "step",
            "print",
            "append",
            "zero_grad",
        ):
            edits = (source.replaced(end.value, f"return {source.text(end.value)}"),)
        sure: Confidence = "medium" if valued or not edits else "high"
        return (
            say("{name} has no return on the way that it took, so it returned None.", name=name)
            if valued
            else say("{name} has no return, so it returned None.", name=name),
            marks, source.code(*edits) or "return loss", edits, sure,
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)

        def loss_of(x: torch.Tensor) -> None:
            value = net(x).square().mean()

        loss = loss_of(torch.randn(4, 3))
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)

        def loss_of(x: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = net(x).square().mean()
            return value

        loss = loss_of(torch.randn(4, 3))
        loss.backward()
