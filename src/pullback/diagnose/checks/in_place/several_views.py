"""PB430: one of several views changed in place."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.overwritten.forms import Form
from pullback.diagnose.evidence.overwritten.report import out_of_place
from pullback.diagnose.evidence.overwritten.sites import form_at
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SeveralViews(Cause):
    """`unbind`, `split`, `chunk`, or a `for` loop over a tensor return several views, and one was changed in place.

    Autograd can follow a change of one view into its base, but not for views that one operation made together. A loop
    `for row in h:` calls `unbind`.

    Loop over indices: `for i in range(len(h)): h[i] += 1`: each `h[i]` is a view of its own. Or make new tensors:
    `row = row + 1`, and `torch.stack` them.
    """

    code = "PB430"
    title = "One of several views that one operation returned was changed in place."
    says = ("function that returns multiple views",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        form = form_at(case)
        if case.site is None:
            return None
        loop = _loop(form) if case.says("of Unbind") else None
        marks = [case.mark(say("one of the views is changed in place here"))]
        edits: tuple[Edit, ...] = ()
        if loop is not None and form is not None:
            rows = _over(loop, form.path)
            over = case.site.source.text(rows) if rows is not None else ""
            marks.append(
                marked(
                    case.site.source, loop, say("iterating {name} makes all its rows at once, by unbind", name=over), ""
                )
            )
            edits = _by_index(form, loop, rows) if rows is not None else ()
        else:
            edits = out_of_place(form)
        name = form.path if form is not None else say("the view")
        return self.found(
            say(
                "{name} is a row of a loop over a tensor: iterating calls unbind, which returns "
                "all rows as views at once.",
                name=name,
            )
            if loop is not None
            else say(
                "{name} is one of several views that one call returned; autograd cannot follow "
                "a change of one of them.",
                name=name,
            ),
            marks,
            Fix(
                say("Loop over indices: each h[i] is a view of its own.")
                if loop is not None
                else say("Make a new tensor instead."),
                case.site.source.code(*edits).strip()
                or ("for i in range(len(h)):\n    h[i] += 1" if loop is not None else f"{name} = {name}.clone()"),
                edits,
                "high" if edits and loop is not None else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        x = torch.randn(4, requires_grad=True)
        left, right = (x * 3).chunk(2)
        left.mul_(2)
        (left.sum() + right.sum()).backward()

    @staticmethod
    def good():
        import torch

        x = torch.randn(4, requires_grad=True)
        left, right = (x * 3).chunk(2)
        left = left.mul(2)
        (left.sum() + right.sum()).backward()


def _loop(form: Form | None) -> ast.For | None:
    """The loop over a tensor whose rows are changed."""
    if form is None or not isinstance(form.base, ast.Name):
        return None
    for each in form.source.around(form.node):
        if isinstance(each, ast.For) and _over(each, form.base.id) is not None:
            return each
    return None


def _over(loop: ast.For, row: str) -> ast.expr | None:
    """What a loop takes its rows from: ``h`` of ``for row in h``, ``for row, x in zip(h, xs)``, ``enumerate(h)``."""
    target, over = loop.target, loop.iter
    if isinstance(target, ast.Name):
        return over if target.id == row else None
    called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
    if not isinstance(target, ast.Tuple) or not isinstance(over, ast.Call) or called not in {"zip", "enumerate"}:
        return None
    names = [each.id if isinstance(each, ast.Name) else "" for each in target.elts]
    place = names.index(row) - (called == "enumerate") if row in names else -1
    return over.args[place] if 0 <= place < len(over.args) else None


def _by_index(form: Form, loop: ast.For, rows: ast.expr) -> tuple[Edit, ...]:
    """The edits that turn ``for row in h`` into a loop over indices."""
    source, row, over = form.source, form.path, path_of(rows)
    names = {each.id for each in ast.walk(source.tree) if isinstance(each, ast.Name)}
    index = next((name for name in ("i", "index", "row_index") if name not in names), "")
    uses = [each for part in loop.body for each in ast.walk(part) if isinstance(each, ast.Name) and each.id == row]
    lines = [each.lineno for each in uses]
    if len(set(lines)) != len(lines) or loop.lineno in lines or loop.iter.end_lineno != loop.lineno or not over:
        return ()
    target, around = source.text(loop.target), source.text(loop.iter)
    if around.startswith("enumerate(") and isinstance(loop.target, ast.Tuple):
        head, index = f"{target} in {around}", source.text(loop.target.elts[0])
    elif rows is loop.iter:
        head = f"{index} in range(len({over}))"
    else:
        head = f"{index}, ({target.strip('()')}) in enumerate({around})"
    if not index.isidentifier():
        return ()
    line = source.lines[loop.lineno - 1]
    rest = line.encode()[loop.iter.end_col_offset :].decode()
    changed = Edit(source.file, loop.lineno, loop.lineno, f"{source.indent(loop.lineno)}for {head}{rest}")
    return (changed, *(source.replaced(each, f"{over}[{index}]") for each in uses))
