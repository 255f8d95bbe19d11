"""What the checks of overwritten tensors say alike: the lines, the names, and the edits that mend a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.names import held_in
from pullback.diagnose.evidence.freed.report import alone, marked
from pullback.diagnose.evidence.functions.classes import saver_of
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
    operation = operation_of(found)
    if (saved := _saved_by(found)) is not None:
        return say("{name} of {function}", name=saved[1], function=saved[0])
    if found.result:
        return say("the result of {operation}", operation=operation)
    if found.saved in {"self", "input"}:
        return say("the first argument of {operation}", operation=operation)
    if found.saved == "other":
        return say("the second argument of {operation}", operation=operation)
    return say("the argument {name} of {operation}", name=found.saved, operation=operation)


def kept_name(found: Overwritten) -> str:
    """What the overwritten tensor is called where the operation that kept it is named too."""
    name = name_of(found)
    if found.name or name == (found.form.path if found.form is not None else ""):
        return name
    if (saved := _saved_by(found)) is not None:
        return saved[1]
    if found.result:
        return say("its result")
    if found.saved in {"self", "input"}:
        return say("its first argument")
    if found.saved == "other":
        return say("its second argument")
    return say("its argument {name}", name=found.saved)


def operation_of(found: Overwritten) -> str:
    """The operation that kept it: torch's in small letters, a custom Function by its name."""
    return found.operation if hasattr(found.reader, "_forward_cls") else found.operation.lower()


def _saved_by(found: Overwritten) -> tuple[str, str] | None:
    """The custom Function that saved it, and what it is called there: ``ctx.save_for_backward(y)``."""
    kind = getattr(found.reader, "_forward_cls", None)
    number = re.search(r"\[(\d+)\]$", found.saved)
    saver = saver_of(kind) if kind is not None and number is not None else None
    calls = saver.calls("save_for_backward") if saver is not None else []
    if saver is None or kind is None or number is None or len(calls) != 1:
        return None
    given = calls[0].args
    if int(number[1]) >= len(given) or any(isinstance(each, ast.Starred) for each in given):
        return None
    return kind.__name__, saver.text(given[int(number[1])])


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
            "{operation} kept {name} for its backward here", operation=operation_of(found), name=kept_name(found)
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
        operation=operation_of(found),
        name=kept_name(found),
        versions=say(" at version {old}; it is at version {new} now", old=old, new=new) if old >= 0 else "",
    )


def subjects(case: Case, found: Overwritten) -> list[Subject]:
    """The overwritten tensor."""
    if found.tensor is None:
        return []
    if (own := _own(case, found.name)) is not None:
        return [Subject.of(own, found.name, "overwritten")]
    subject = Subject.of(found.tensor, name_of(found), "overwritten")
    if found.result and found.reader is not None:  # what a node keeps of its own result has lost its place in the graph
        subject = replace(subject, grad_fn=found.reader.name(), requires_grad=True)
    return [subject]


def _own(case: Case, name: str) -> Tensor | None:
    """The tensor that the user calls so: a node may have kept a view or an alias of it."""
    for held in held_in(case.frames) if name else ():
        if held.path == name:
            return held.tensor
    for variable, module in case.holds(nn.Module) if "." in name else ():
        for inner, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
            if name == f"{variable}.{inner}":
                return parameter
    return None


def out_of_place(form: Form | None, *, part: bool = False) -> tuple[Edit, ...]:
    """The edit that makes a new tensor instead: ``h += 1`` becomes ``h = h + 1``, ``h.relu_()`` ``h = h.relu()``.

    Args:
        form: The change.
        part: Whether what was kept is a part of what is changed, such as ``x[0]`` in ``x[1] = f(x[0])``.
    """
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
    reads = cloned_reads(source, statement, form.path)
    return reads if reads and part else (*cloned_before(source, statement, form.path), *reads)


def is_part(tensor: Tensor | None) -> bool:
    """Whether a tensor is a part of a larger one's memory."""
    if tensor is None or tensor.layout is not torch.strided:
        return False
    return tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()


def cloned_before(source: Source, statement: ast.stmt, path: str) -> tuple[Edit, ...]:
    """The edit that gives a variable a memory of its own before a statement."""
    if source.lines[statement.lineno - 1].encode()[: statement.col_offset].strip():
        return ()  # it does not begin its line
    return (source.inserted_before(statement, f"{path} = {path}.clone()"),)


def cloned_reads(source: Source, statement: ast.stmt | None, path: str) -> tuple[Edit, ...]:
    """The edit that clones what a statement reads of a variable into which it writes: ``x[1] = f(x[0].clone())``."""
    if not isinstance(statement, ast.Assign) or statement.lineno != statement.end_lineno:
        return ()
    reads = [
        each
        for each in ast.walk(statement.value)
        if isinstance(each, ast.Subscript) and path_of(each.value) == path and each.end_col_offset is not None
    ]
    line = source.lines[statement.lineno - 1].encode()
    for end in sorted((each.end_col_offset or 0 for each in reads), reverse=True):
        line = line[:end] + b".clone()" + line[end:]
    return (Edit(source.file, statement.lineno, statement.lineno, line.decode()),) if reads else ()


def _sign(source: Source, statement: ast.AugAssign) -> str:
    between = source.text(statement)[len(source.text(statement.target)) :].lstrip()
    found = re.match(r"[^=\s]+", between)
    return found.group() if found else "+"


def code_of(source: Source | None, edits: Sequence[Edit], otherwise: str) -> str:
    """The lines of edits, or other code where there are none; of a line that is put before another, both."""
    if source is None or not edits:
        return otherwise
    code = source.code(*edits).strip("\n")
    if len(edits) == 1 and edits[0].last < edits[0].first <= len(source.lines):
        code += f"\n{source.lines[edits[0].first - 1].strip()}"
    return code


def instead(found: Overwritten, edits: Sequence[Edit]) -> str:
    """The lines of edits; without any, a clone of what is changed."""
    form = found.form
    path = form.path if form is not None and form.path else found.name
    cloned = f"{path} = {path}.clone()    # {say('before it is changed')}" if path else ""
    return code_of(form.source if form is not None else None, edits, cloned)


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
