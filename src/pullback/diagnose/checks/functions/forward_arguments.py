"""PB709: forward does not take the arguments that it is called with."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import CONTEXTS, Method, called, has_setup, method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class ForwardArguments(Cause):
    """The forward of a custom Function does not take the arguments that it was called with.

    ``apply(a, b)`` calls ``forward(ctx, a, b)``: the context comes first, then what ``apply`` was given, by position.
    Only where the class also has a ``setup_context(ctx, inputs, output)`` is forward called without a context,
    ``forward(a, b)``. With ``self`` or without ``@staticmethod`` the count is one off as well.
    """

    code = "PB709"
    title = "A Function's forward does not take the arguments that it is called with."
    says = (
        "positional argument",
        "missing a required argument",
        "too many positional arguments",
        "got an unexpected keyword argument",
    )
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = called(case)
        forward = method_of(found[0], "forward") if found else None
        if found is None or forward is None or (case.site is not None and case.site.code.co_name == "forward"):
            return None
        kind, given = found
        setup = has_setup(kind)
        if not setup and f"{kind.__name__}.forward()" not in case.message:
            return None
        taken = len(forward.arguments) - len(forward.node.args.defaults)
        names = forward.names
        has_context = bool(names) and names[0] in CONTEXTS
        marks = [
            case.mark(say("{name} was applied here; arguments: {count}", name=kind.__name__, count=len(given))),
            forward.mark(forward.node, say("forward is defined here")),
        ]
        if setup:
            if not has_context or "setup_context" in case.message:
                return None
            return self._with_setup(kind, forward, marks)
        if not has_context and len(names) >= len(given) >= taken:
            return self._without_context(kind, forward, marks)
        if names[:1] == ["self"] and names[1:2] and names[1] in CONTEXTS:
            text = say("Leave out self, and make it a @staticmethod.")
            cause = say("{kind}.forward has self before ctx; but no object of {kind} is ever made.", kind=kind.__name__)
            return self.found(cause, marks, Fix(text, f"def forward({', '.join(names[1:])}):", (), "medium"))
        return self.found(
            say(
                "{kind}.forward takes {names} after the context; arguments that {kind}.apply was given: {given}.",
                kind=kind.__name__,
                given=len(given),
                names=", ".join(names[1:]) or say("none"),
            ),
            marks,
            Fix(
                say("Pass one argument for each of them."),
                f"{kind.__name__}.apply({', '.join(names[1:])})",
                (),
                "medium",
            ),
        )

    def _without_context(self, kind: type, forward: Method, marks: list[Mark]) -> Diagnosis:
        edits: tuple[Edit, ...] = ()
        if forward.own and forward.arguments:
            first = forward.arguments[0]
            edits = forward.rewrite().replace(first, f"ctx, {forward.text(first)}").edits()
        return self.found(
            say(
                "{kind}.apply calls forward with a context before the arguments, but {kind}.forward({names}) has no "
                "place for it, and there is no setup_context.",
                kind=kind.__name__,
                names=", ".join(forward.names),
            ),
            marks,
            Fix(
                say("Take the context as the first argument of forward (or add a setup_context)."),
                forward.source.code(*edits) or "def forward(ctx):",
                edits,
                "high" if edits else "medium",
            ),
        )

    def _with_setup(self, kind: type, forward: Method, marks: list[Mark]) -> Diagnosis:
        context = forward.names[0]
        used = [each for each in forward.inner if isinstance(each, ast.Name) and each.id == context]
        setup = method_of(kind, "setup_context")
        if setup is not None:
            marks = [*marks, setup.mark(setup.node, say("so forward is called without a context"))]
        edits: tuple[Edit, ...] = ()
        if forward.own and len(forward.arguments) > 1 and not used:
            first, second = forward.arguments[:2]
            edits = forward.rewrite().replace(first, forward.text(second)).edits()
            line = forward.source.lines[first.lineno - 1]
            old = forward.source.lines[first.lineno - 1].encode()
            new = old[: first.col_offset] + old[second.col_offset :] if first.lineno == second.lineno else old
            edits = (
                (Edit(forward.source.file, first.lineno, first.lineno, new.decode()),) if new.decode() != line else ()
            )
        return self.found(
            say(
                "{kind} has a setup_context, so its forward is called without a context: {kind}.forward({names}) gets "
                "one argument too few.",
                kind=kind.__name__,
                names=", ".join(forward.names),
            ),
            marks,
            Fix(
                say("Leave {ctx} out of forward, and move what it does with it to setup_context.", ctx=context),
                forward.source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Half(torch.autograd.Function):
            @staticmethod
            def forward(x, y):
                return (x + y) / 2

            @staticmethod
            def backward(ctx, grad):
                return grad / 2, grad / 2

        x = torch.randn(3, requires_grad=True)
        Half.apply(x, torch.randn(3)).sum().backward()

    @staticmethod
    def good():
        import torch

        class Half(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                return (x + y) / 2

            @staticmethod
            def backward(ctx, grad):
                return grad / 2, grad / 2

        x = torch.randn(3, requires_grad=True)
        Half.apply(x, torch.randn(3)).sum().backward()
