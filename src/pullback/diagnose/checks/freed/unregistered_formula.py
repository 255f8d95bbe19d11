"""PB322: a custom operator without a formula for autograd."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import asking_frame
from pullback.diagnose.evidence.freed.operations import operation_mark
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class UnregisteredFormula(Cause):
    """An operator registered with `torch.library` was differentiated, and no formula for autograd was registered.

    What a custom operator computes inside is hidden from autograd, even if it is written with torch's operations. It
    is recorded as a node that refuses, so the error comes in `backward()`.

    Register the backward: `op.register_autograd(backward, setup_context=setup)`, where `backward(ctx, grad)` returns
    one gradient for each input. If the inside is plain torch, leave out `custom_op`: autograd then sees through it.
    """

    code = "PB322"
    title = "A custom operator without an autograd formula was differentiated."
    says = (
        "no autograd formula was registered",
        "autograd formula was not registered",
        "not implemented for autograd kernel",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = re.search(r"through ([\w:.]+)", case.message)
        name = found.group(1) if found else ""
        short = name.removesuffix(".default").replace("::", ".").rsplit(".", 1)[-1]
        asking = asking_frame(case)
        marks = [asking.mark(say("the gradient is asked for here")) if asking else case.mark("")]
        definition = self._definition(case, short)
        function = short
        if definition is not None:
            mark, function = definition
            marks.append(mark)
        marks += operation_mark(case, short, say("the operator was called here"))
        return self.found(
            say(
                "The operator {name} has no backward: autograd cannot look into it.",
                name=name or say("of this program"),
            ),
            marks,
            Fix(
                say("Register its backward."),
                f"{function}.register_autograd(lambda ctx, grad: ..., setup_context=...)",
                (),
                "low",
            ),
        )

    @staticmethod
    def _definition(case: Case, short: str) -> tuple[Mark, str] | None:
        for frame in reversed(case.frames):
            source = frame.source
            for node in ast.walk(source.tree):
                if not isinstance(node, ast.FunctionDef):
                    continue
                texts = [source.text(each) for each in node.decorator_list]
                if any("custom_op" in text and re.search(rf"::{re.escape(short)}\b", text) for text in texts):
                    place = Place(source.file, node.lineno, node.name)
                    return Mark.at(place, say("defined here, without a backward")), node.name
        return None

    @staticmethod
    def bad():
        import torch

        @torch.library.custom_op("pb322_bad::halve", mutates_args=())
        def halve(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        w = torch.randn(2, requires_grad=True)
        halve(w).prod().backward()

    @staticmethod
    def good():
        import torch

        @torch.library.custom_op("pb322_good::halve", mutates_args=())
        def halve(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        halve.register_autograd(lambda ctx, grad: grad / 2)
        w = torch.randn(2, requires_grad=True)
        halve(w).prod().backward()
