"""PB219: tensors were hidden in a list argument of a custom Function."""

from __future__ import annotations

import ast

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.slices import entered
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class HiddenInList(RootWithoutGraph):
    """Tensors were given to a custom Function inside a list or dict, where autograd does not see them.

    ``Function.apply`` looks only at its own arguments: a tensor inside a list, a tuple, a dict or an object is
    no input of the Function. If no argument is itself a tensor that requires grad, then no node is made, and
    the output has no graph.

    Give the tensors one by one: ``MyFunction.apply(*tensors)`` with ``def forward(ctx, *tensors)``; then
    ``backward`` returns a tuple with one gradient for each of them. Beside one visible tensor, the hidden ones
    silently get no gradient.
    """

    code = "PB219"
    title = "Tensors were hidden in a list argument of a custom Function, so it has no input that requires grad."
    kinds = ("hidden",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{name}.apply was given its tensors in {operand}: autograd looks only at arguments that are tensors "
            "themselves, "
            "so it made no node for {name}, and {root} has no graph.",
            name=cut.name,
            operand=cut.operand_text,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("the tensors are inside {operand}", operand=cut.operand_text)

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        assert cut.operand is not None
        text = say("Give the tensors one by one, and return one gradient for each.")
        edits = self._edits(cut)
        code = f"{cut.name}.apply(*{cut.operand_text})    # and: def forward(ctx, *tensors)"
        return fix_of(cut, text, edits, "high" if len(edits) > 2 else "medium", "" if edits else code)

    @staticmethod
    def _edits(cut: Cut) -> tuple[Edit, ...]:
        """The call, the signature of ``forward``, and what ``backward`` returns, if there is but one argument."""
        call = cut.node
        if not isinstance(call, ast.Call) or len(call.args) != 1 or not isinstance(call.func, ast.Attribute):
            return ()
        kind = cut.body.evaluated(call.func.value)
        if not isinstance(kind, type) or not issubclass(kind, torch.autograd.Function) or cut.operand is None:
            return ()
        if type(cut.body.evaluated(cut.operand)) is dict or isinstance(cut.operand, ast.Dict | ast.DictComp):
            return ()
        forward, backward = (entered(getattr(kind, name), call, cut.body) for name in ("forward", "backward"))
        if forward is None or backward is None or not isinstance(forward.scope, ast.FunctionDef):
            return ()
        parameters = forward.scope.args.args
        if len(parameters) != 2:
            return ()
        source = forward.source
        edits: tuple[Edit, ...] = (
            cut.source.replaced(cut.operand, f"*{cut.source.text(cut.operand)}"),
            _replaced(source, parameters[1], f"*{parameters[1].arg}"),
        )
        returns = [each for each in ast.walk(backward.scope) if isinstance(each, ast.Return) and each.value is not None]
        if len(returns) == 1 and not isinstance(returns[0].value, ast.Tuple):
            value = returns[0].value
            assert value is not None
            edits += (backward.source.replaced(value, f"tuple({backward.source.text(value)})"),)
        return edits

    @staticmethod
    def bad():
        import torch

        class Total(torch.autograd.Function):
            @staticmethod
            def forward(ctx, tensors):
                ctx.shapes = [each.shape for each in tensors]
                return torch.stack([each.sum() for each in tensors]).sum()

            @staticmethod
            def backward(ctx, grad):
                return [grad.expand(shape) for shape in ctx.shapes]

        weights = [torch.randn(2, requires_grad=True), torch.randn(3, requires_grad=True)]
        Total.apply(weights).backward()

    @staticmethod
    def good():
        import torch

        class Total(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *tensors):
                ctx.shapes = [each.shape for each in tensors]
                return torch.stack([each.sum() for each in tensors]).sum()

            @staticmethod
            def backward(ctx, grad):
                return tuple(grad.expand(shape) for shape in ctx.shapes)

        weights = [torch.randn(2, requires_grad=True), torch.randn(3, requires_grad=True)]
        Total.apply(*weights).backward()


def _replaced(source: Source, parameter: ast.arg, text: str) -> Edit:
    """The edit that puts a text where a parameter stands."""
    line = source.lines[parameter.lineno - 1].encode()
    end = parameter.end_col_offset or parameter.col_offset
    new = line[: parameter.col_offset].decode() + text + line[end:].decode()
    return Edit(source.file, parameter.lineno, parameter.lineno, new)
