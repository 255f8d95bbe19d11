"""PB834: a level of forward mode within another."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.graph.values import Place
from pullback.language import say


class NestedLevels(Cause):
    """``dual_level()`` was entered while a level was open already; torch allows one at a time.

    The inner ``with fwAD.dual_level():`` stands in a function that is called from within another, or a level was
    entered by ``enter_dual_level()`` and never left.

    Open the level once, outside, and make all duals in it. For a second derivative nest ``torch.func.jvp``, which keeps
    its own levels apart: ``jvp(lambda x: jvp(f, (x,), (v,))[1], (x,), (w,))``, or take
    ``torch.func.jacfwd(torch.func.jacrev(f))``. ``exit_dual_level()`` before the inner one would lose the outer
    tangents.
    """

    code = "PB834"
    title = "A level of forward mode was entered within another."
    says = ("Nested forward mode AD is not supported",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        marks = [case.mark(say("a second level is entered here"))]
        for frame in reversed(case.frames):
            around = frame.statement
            for each in frame.source.around(around) if around is not None else ():
                if isinstance(each, ast.With) and not (frame is case.site and each is around) and _level(each):
                    place = Place(frame.file, each.lineno, frame.place.function)
                    marks.append(case.mark_at(place, say("the first level is open since here")))
        edits: tuple[Edit, ...] = ()
        inner = case.site.statement
        if isinstance(inner, ast.With) and len(inner.items) == 1 and len(marks) > 1:
            edits = (_unwrapped(case, inner),)
        return self.found(
            say("A level of forward mode is open when this line opens another. Only one may be open at a time."),
            marks,
            Fix(
                say("Open one level around all, or nest torch.func.jvp for second derivatives."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch
        import torch.autograd.forward_ad as fw

        def slope(x):
            with fw.dual_level():
                return fw.unpack_dual(fw.make_dual(x, torch.ones(2)).sin()).tangent

        with fw.dual_level():
            slope(torch.zeros(2))

    @staticmethod
    def good():
        import torch
        import torch.autograd.forward_ad as fw

        def slope(x):
            with fw.dual_level():
                return fw.unpack_dual(fw.make_dual(x, torch.ones(2)).sin()).tangent

        slope(torch.zeros(2))


def _level(statement: ast.With) -> bool:
    return any("dual_level" in ast.dump(item.context_expr) for item in statement.items)


def _unwrapped(case: Case, statement: ast.With) -> Edit:
    """The body of a block without the block."""
    assert case.site is not None
    source = case.site.source
    first, last = statement.body[0].lineno, statement.end_lineno or statement.lineno
    indent, inner = source.indent(statement.lineno), source.indent(first)
    lines = [indent + line.removeprefix(inner) if line.strip() else line for line in source.lines[first - 1 : last]]
    return Edit(source.file, statement.lineno, last, "\n".join(lines))
