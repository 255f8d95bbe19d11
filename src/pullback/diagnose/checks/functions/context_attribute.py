"""PB717: an attribute of the context that was never set."""

from __future__ import annotations

import ast
import difflib
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    applied_marks,
    asked_marks,
    inputs_of,
    running,
    saver_of,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class ContextAttribute(Cause):
    """The backward of a custom Function reads something from the context that forward never put there.

    ``ctx`` carries to ``backward`` what ``forward`` (or ``setup_context``) puts on it, under the very same name, and
    nothing else: neither the arguments of ``forward`` nor its variables come along. Set ``ctx.k = k`` on every way
    through ``forward``; save tensors with ``ctx.save_for_backward(x)`` and read them as ``ctx.saved_tensors``.
    """

    code = "PB717"
    title = "A Function's backward reads an attribute of ctx that forward never set."
    says = ("Backward' object has no attribute",)
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"'(\w+)Backward' object has no attribute '(\w+)'", case.message)
        found = running(case)
        if said is None or found is None or said[2] == "_fwd_used_autocast":
            return None
        node, frame = found
        kind, name = node._forward_cls, said[2]
        saver = saver_of(kind)
        if saver is None or kind.__name__ != said[1]:
            return None
        context = saver.context
        stored = {
            each.attr: each
            for each in saver.inner
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and saver.text(each.value) == context
        }
        known = [*stored, "saved_tensors", "needs_input_grad"]
        near = difflib.get_close_matches(name, known, 1, 0.6)
        marks = [case.mark(say("ctx.{name} is read here", name=name))]
        if name in stored:
            marks.append(saver.mark(stored[name], say("it is set here, but not on every way")))
        elif near and near[0] in stored:
            marks.append(saver.mark(stored[near[0]], say("ctx.{name} is set here", name=near[0])))
        else:
            marks.append(saver.mark(saver.node, say("ctx.{name} is never set in here", name=name)))
        marks += [*applied_marks(case, kind, node), *asked_marks(case)]
        fix = self._fix(case, kind, name, near[0] if near and name not in stored else "", marks)
        return self.found(
            say(
                "{kind}.backward reads ctx.{name}, which {method} did not set. Only what is put on ctx there is there "
                "in backward.",
                kind=kind.__name__,
                name=name,
                method=saver.name,
            ),
            marks,
            fix,
        )

    def _fix(self, case: Case, kind: type, name: str, near: str, marks: list[Mark]) -> Fix:
        saver, site = saver_of(kind), case.site
        assert saver is not None
        edits: tuple[Edit, ...] = ()
        if near and site is not None and site.node is not None and isinstance(site.node, ast.Attribute):
            edits = (site.source.replaced(site.node, f"{site.source.text(site.node.value)}.{near}"),)
            return Fix(say("Read it under the name that it was set under."), site.source.code(*edits), edits, "high")
        first = saver.body[0] if saver.body else None
        if name in inputs_of(kind) and first is not None and saver.name.endswith("forward"):
            text = f"{saver.context}.{name} = {name}"
            edits = saver.rewrite().before(first, text).edits() if saver.own else ()
            return Fix(say("Keep it in forward."), text, edits, "high" if edits else "medium")
        return Fix(
            say("Set it in {method}, whichever way is taken.", method=saver.name),
            f"{saver.context}.{name} = {name}",
            (),
            "medium",
        )

    @staticmethod
    def bad():
        import torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None

        x = torch.randn(4, requires_grad=True)
        Scaled.apply(x, 3.0).sum().backward()

    @staticmethod
    def good():
        import torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None

        x = torch.randn(4, requires_grad=True)
        Scaled.apply(x, 3.0).sum().backward()
