"""What the checks of overwritten tensors say alike: the lines, the names, and the edits that mend a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.report import alone, marked
from pullback.diagnose.evidence.overwritten.find import Overwritten, overwritten
from pullback.diagnose.evidence.overwritten.forms import Form, base_of
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit, Mark, Subject
from pullback.language import say


def of_kind(case: Case, *kinds: str) -> Overwritten | None:
    """What is known of the overwritten tensor, if its cause is of these kinds."""
    found = case.once(overwritten)
    return found if found is not None and found.kind in kinds else None


def name_of(found: Overwritten) -> str:
    """What the overwritten tensor is called."""
    if found.name:
        return found.name
    if found.certain and found.form is not None and found.form.path and found.kind in {"input", "result"}:
        return found.form.path  # the function has returned, but this is what it called it
    operation = found.operation.lower()
    if found.result:
        return say("the result of {operation}", operation=operation)
    return say("the argument {name} of {operation}", name=found.saved, operation=operation)


def failing_mark(case: Case, found: Overwritten) -> Mark:
    """The line that asked for the pass."""
    what = say("this backward pass needs {name} as it was", name=name_of(found))
    return found.asking.mark(what) if found.asking is not None else case.mark(what)


def written_mark(found: Overwritten, what: str) -> list[Mark]:
    """The line that changed it."""
    if found.spot is not None:
        return [found.spot.mark(what)]
    if found.form is not None:
        node = found.form.node
        return [marked(found.form.source, node, what, _function(found.form.source, node))]
    return []


def all_marks(case: Case, found: Overwritten, what: str) -> list[Mark]:
    """The failing line, the one that saved it, the one that made a view, and the one that changed it."""
    marks = [failing_mark(case, found)]
    read = case.line_of(found.reader)
    if read is not None:
        kept = say(
            "{operation} kept {name} for its backward here", operation=found.operation.lower(), name=name_of(found)
        )
        marks.append(case.mark_at(read, kept))
    if found.alias is not None and found.form is not None:
        shares = say("this shares memory with {name}", name=name_of(found))
        marks.append(marked(found.form.source, found.alias, shares, _function(found.form.source, found.alias)))
    return marks + written_mark(found, what)


def _function(source: Source, node: ast.AST) -> str:
    return getattr(source.scope(node), "name", "<module>")


def sentence(found: Overwritten) -> str:
    """What was kept and how often it was changed."""
    old, new = found.versions
    return say(
        "{operation} kept {name} for its backward{versions}.",
        operation=found.operation.lower(),
        name=name_of(found),
        versions=say(" at version {old}; it is at version {new} now", old=old, new=new) if old >= 0 else "",
    )


def subjects(case: Case, found: Overwritten) -> list[Subject]:
    """The overwritten tensor."""
    return [] if found.tensor is None else [Subject.of(found.tensor, name_of(found), "overwritten")]


def out_of_place(form: Form | None) -> tuple[Edit, ...]:
    """The edit that makes a new tensor instead: ``h += 1`` becomes ``h = h + 1``, ``h.relu_()`` ``h = h.relu()``."""
    if form is None or not form.path:
        return ()
    source, statement = form.source, form.statement
    if statement is None:
        return ()
    if form.way == "whole" and isinstance(statement, ast.AugAssign):
        sign = _sign(source, statement)
        value = source.text(statement.value)
        inner = (
            value if isinstance(statement.value, ast.Name | ast.Constant | ast.Call | ast.Attribute) else f"({value})"
        )
        return (source.replaced(statement, f"{form.path} = {form.path} {sign} {inner}"),)
    call = form.node
    if form.way == "whole" and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        of = source.text(call.func.value)
        arguments = source.text(call)[len(source.text(call.func)) :]
        plain = call.func.attr.removesuffix("_")
        if path_of(call.func.value) == form.path and plain not in {
            "zero",
            "fill",
            "copy",
            "normal",
            "uniform",
            "exponential",
        }:
            if isinstance(statement, ast.Expr) and statement.value is call:
                return (source.replaced(statement, f"{of} = {of}.{plain}{arguments}"),)
            return (source.replaced(call, f"{of}.{plain}{arguments}"),)
    return cloned_before(source, statement, form.path)


def cloned_before(source: Source, statement: ast.stmt, path: str) -> tuple[Edit, ...]:
    """The edit that gives a variable a memory of its own before a statement."""
    if source.lines[statement.lineno - 1].encode()[: statement.col_offset].strip():
        return ()  # it does not begin its line
    if isinstance(statement, ast.Assign):  # what is read there shares its memory with what is written
        reads = [each for each in ast.walk(statement.value) if isinstance(each, ast.Subscript)]
        own = [each for each in reads if path_of(each.value) == path]
        if own:
            return (source.replaced(own[0], f"{source.text(own[0])}.clone()"),) if len(own) == 1 else ()
    return (source.inserted_before(statement, f"{path} = {path}.clone()"),)


def _sign(source: Source, statement: ast.AugAssign) -> str:
    between = source.text(statement)[len(source.text(statement.target)) :].lstrip()
    found = re.match(r"[^=\s]+", between)
    return found.group() if found else "+"


def code_of(source: Source | None, edits: Sequence[Edit], otherwise: str) -> str:
    """The lines of edits, or other code where there are none."""
    return source.code(*edits).strip("\n") if source is not None and edits else otherwise


def may_edit(found: Overwritten) -> bool:
    """Whether an edit of the variable cannot be seen by a caller that handed it in."""
    form = found.form
    if form is None or "." in form.path:
        return form is not None
    scope = form.source.scope(form.node)
    given = {each.arg for each in getattr(getattr(scope, "args", None), "args", [])}
    of = path_of(base_of(found.alias.value)[0]) if found.alias is not None else form.path
    return form.path not in given and of not in given


def moved_after(source: Source, statement: ast.stmt | None, last: ast.stmt | None) -> tuple[Edit, ...]:
    """The edits that move a statement behind a later one of the same block."""
    if statement is None or last is None or source.parent(statement) is not source.parent(last):
        return ()
    if statement.lineno >= last.lineno or not alone(source, statement) or not alone(source, last):
        return ()
    first, end = statement.lineno, statement.end_lineno or statement.lineno
    text = "\n".join(source.lines[first - 1 : end])
    after = (last.end_lineno or last.lineno) + 1
    return (Edit(source.file, first, end, None), Edit(source.file, after, after - 1, text))


def why_not_retain() -> str:
    """Why keeping the graph is no cure."""
    return say("retain_graph=True: the graph is there; a tensor that it kept has changed.")


def why_not_data() -> str:
    """Why hiding the change is no cure."""
    return say(
        "changing x.data instead: it hides the change from the check, and the gradients are computed with wrong values."
    )


def without_inplace(case: Case, kind: str) -> tuple[tuple[Edit, ...], list[tuple[str, int]]]:
    """The edits that leave ``inplace=True`` out of the calls of a class, and their places."""
    edits: dict[tuple[str, int], Edit] = {}
    for frame in case.frames:
        source = frame.source
        for node in ast.walk(source.tree):
            func = node.func if isinstance(node, ast.Call) else None
            called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if called != kind or not isinstance(node, ast.Call) or node.lineno != node.end_lineno:
                continue
            text = source.lines[node.lineno - 1]
            if (plain := re.sub(r",?\s*inplace\s*=\s*True", "", text)) and plain != text:
                edits[source.file, node.lineno] = Edit(source.file, node.lineno, node.lineno, plain)
    return tuple(edits.values()), list(edits)
