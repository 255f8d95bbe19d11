"""PB724: forward of a Function returns a list."""

from __future__ import annotations

import ast

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.functions.classes import Method, method_of
from pullback.diagnose.evidence.functions.hooks import calls_of
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class ListReturned(Cause):
    """The forward of a custom Function returned its tensors in a list or a dict, where autograd does not see them.

    ``apply`` connects what it returns with the graph only if that is a tensor or a *tuple* of tensors. A list, a dict
    or an object is handed on as it is: the tensors in it do not require grad. Return a tuple, and make the list or the
    dict outside, from what ``apply`` returned.
    """

    code = "PB724"
    title = "The forward of a custom Function returned its tensors in a list or a dict."
    says = ("does not require grad and does not have a grad_fn",)
    raises = (RuntimeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        roots = case.asked.tensors if case.asked is not None else []
        if not roots or any(root.requires_grad for root in roots) or found_in(case).cuts:
            return None
        found = _hiding(case)
        if len(found) != 1:
            return None
        source, call, kind, forward, value = found[0]
        form = say("a dict") if isinstance(value, ast.Dict | ast.DictComp) else say("a list")
        edits = _edits(forward, value)
        return self.found(
            say(
                "{method} returns {form}. autograd connects only a tensor, or a tuple of tensors, with the graph; "
                "what is in {form} does not require grad.",
                method=forward.name, form=form,
            ),
            [
                case.mark(say("this has no graph")),
                Mark.at(
                    Place(source.file, call.lineno, ""), say("{name} was applied here", name=kind.__name__),
                    source.span(call),
                ),
                forward.mark(value, say("{form} is returned here", form=form)),
            ],
            Fix(
                say("Return a tuple."),
                forward.source.code(*edits) or f"return tuple({forward.text(value)})",
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Both(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return [x.sin(), x.cos()]

            @staticmethod
            def backward(ctx, a, b):
                (x,) = ctx.saved_tensors
                return a * x.cos() - b * x.sin()

        x = torch.randn(3, requires_grad=True)
        sine, cosine = Both.apply(x)
        (sine + cosine).sum().backward()

    @staticmethod
    def good():
        import torch

        class Both(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.sin(), x.cos()

            @staticmethod
            def backward(ctx, a, b):
                (x,) = ctx.saved_tensors
                return a * x.cos() - b * x.sin()

        x = torch.randn(3, requires_grad=True)
        sine, cosine = Both.apply(x)
        (sine + cosine).sum().backward()


Hiding = tuple[Source, ast.Call, type, Method, ast.expr]


def _hiding(case: Case) -> list[Hiding]:
    """The calls of ``apply`` whose forward returns a list or a dict wherever it returns."""
    found: list[Hiding] = []
    for source, call in calls_of(case, {"apply"}):
        kind = _kind(case, call)
        forward = method_of(kind, "forward") if kind is not None else None
        if kind is None or forward is None or not forward.returns:
            continue
        values = [forward.assigned(each.id) if isinstance(each, ast.Name) else None for each in forward.returns]
        forms = [each if made is None else made.value for each, made in zip(forward.returns, values, strict=True)]
        if all(map(_is_container, forms)):
            value = forms[0] if not isinstance(forward.returns[0], ast.Name) else forward.returns[0]
            found.append((source, call, kind, forward, value))
    return found


def _kind(case: Case, call: ast.Call) -> type | None:
    """The Function whose ``apply`` is called, if a frame knows its name."""
    if not isinstance(call.func, ast.Attribute):
        return None
    for frame in reversed(case.frames):
        found = frame.evaluated(call.func.value)
        if isinstance(found, type) and issubclass(found, torch.autograd.Function):
            return found
    return None


def _is_container(value: ast.expr) -> bool:
    named = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("list", "dict")
    return named or isinstance(value, ast.List | ast.ListComp | ast.Dict | ast.DictComp)


def _edits(forward: Method, value: ast.expr) -> tuple[Edit, ...]:
    if not forward.own or isinstance(value, ast.Dict | ast.DictComp) or len(forward.returns) != 1:
        return ()
    return forward.rewrite().replace(value, f"tuple({forward.text(value)})").edits()
