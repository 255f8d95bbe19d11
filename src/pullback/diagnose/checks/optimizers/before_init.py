"""PB630: attributes before Module.__init__."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called, mark_node
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class BeforeInit(Cause):
    """A module has to be set up, by ``super().__init__()``, before it gets parameters or layers.

    ``nn.Module.__init__`` makes the tables that parameters and layers are kept in. Call it in the first line of your
    own ``__init__``.
    """

    code = "PB630"
    title = "A module was given parameters or layers before super().__init__() was called."
    says = ("before module.__init__() call",)
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        scope, source = case.site.scope, case.site.source
        if not isinstance(scope, ast.FunctionDef) or scope.name != "__init__":
            return None
        later = next(
            (each for each in scope.body if isinstance(each, ast.Expr) and called(each.value) == "__init__"), None
        )
        documented = isinstance(scope.body[0], ast.Expr) and isinstance(scope.body[0].value, ast.Constant)
        first = scope.body[1 if documented and len(scope.body) > 1 else 0]
        text = source.text(later) if later is not None else "super().__init__()"
        edits: list[Edit] = [source.inserted_before(first, text)]
        marks = [case.mark(say("the module is not set up yet"))]
        if later is not None:
            edits.append(Edit(source.file, later.lineno, later.end_lineno or later.lineno, None))
            marks.append(mark_node(source, later, say("it is set up only here"), case.site.place.function))
        else:
            marks.append(mark_node(source, first, say("super().__init__() is missing before this"),
                                   case.site.place.function))  # fmt: skip
        return self.found(
            say("{name} has not called super().__init__(), which makes the tables for parameters and layers.",
                name=case.site.place.function)
            if later is None
            else say("{name} calls super().__init__() only after it has begun to add layers.",
                     name=case.site.place.function),
            marks,
            Fix(say("Call super().__init__() first."), "super().__init__()", tuple(edits), "high"),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Scale(torch.nn.Module):
            def __init__(self) -> None:
                self.factor = torch.nn.Parameter(torch.ones(1))
                super().__init__()

        Scale()

    @staticmethod
    def good():
        import torch

        class Scale(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.nn.Parameter(torch.ones(1))

        Scale()
