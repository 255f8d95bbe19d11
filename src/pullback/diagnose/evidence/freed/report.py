"""What the checks of freed graphs say alike: lines, cures that do not help, and edits that mend a program."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, Spot
from pullback.diagnose.evidence.freed.find import Name, Reentry, reentry, renewals
from pullback.diagnose.evidence.freed.flow import Loop, written_in
from pullback.diagnose.evidence.freed.names import Held
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit, Mark
from pullback.graph.values import Place
from pullback.language import say


def of_kind(case: Case, *kinds: str) -> Reentry | None:
    """What is known of the failing pass, if its cause is of these kinds and no other check is to tell it."""
    if not is_of_graph(case):
        return None
    found = case.once(reentry)
    return found if found is not None and found.kind in kinds else None


def is_of_graph(case: Case) -> bool:
    """Whether a backward pass was asked for, by the user and not by ``torch.func``."""
    return case.asked is not None and case.library_frame("_functorch/eager_transforms.py", "wrapper") is None


def failing_mark(case: Case, found: Reentry, what: str) -> Mark:
    """The line that asked for the failing pass."""
    return found.asking.mark(what) if found.asking is not None else case.mark(what)


def earlier_mark(found: Reentry, what: str) -> list[Mark]:
    """The line of the pass that freed the graph."""
    spot = found.earlier.spot if found.earlier is not None else None
    return [] if spot is None else [spot.mark(what)]


def entry_marks(case: Case, found: Reentry, name: str) -> tuple[list[Mark], list[Mark]]:
    """The lines where the freed value was made and where it was used again, as far as they are known."""
    if found.entry is None:
        return [], []
    made = case.line_of(found.entry.freed)
    used = case.line_of(found.entry.user)
    first = [case.mark_at(made, say("{name} was made here", name=name))] if made else []
    then = [case.mark_at(used, say("{name} was used again here", name=name))] if used else []
    return first, then


def written_marks(name: Name, what: str) -> list[Mark]:
    """The lines of a loop, or before it, that write to a variable: without the trace, by reading the source."""
    source = name.held.frame.source
    if name.loop is not None and name.kind != "outside":
        targets = written_in(name.loop).get(name.held.variable, [])
    else:
        around: ast.AST = source.scope(name.loop) if name.loop is not None else name.held.frame.scope
        if name.held.shared:
            around = source.tree
        targets = written_in(around).get(name.held.variable, [])
        last = name.loop.lineno if name.loop is not None else name.held.frame.line
        targets = [each for each in targets if each.lineno < last] or targets
    statement = source.statement(targets[-1]) if targets else None
    return [marked(source, statement, what, name.held.frame.code.co_name)] if statement is not None else []


def renewed_marks(case: Case, held: Held, what: str) -> list[Mark]:
    """The line that renews an item of a container, if there is just one: ``memory["h"] = cell(x, memory["h"])``."""
    found = {(source.file, node.lineno): (source, node) for source, node in renewals(case, held)}
    if len(found) != 1:
        return []
    ((source, node),) = found.values()
    statement = source.statement(node)
    scope = source.scope(node)
    return [marked(source, statement or node, what, getattr(scope, "name", "<module>"))]


def marked(source: Source, node: ast.stmt | ast.expr, what: str, function: str = "") -> Mark:
    """A line of the source, with a node marked."""
    return Mark.at(Place(source.file, node.lineno, function), what, source.span(node))


def once_each(marks: Iterable[Mark]) -> list[Mark]:
    """Marks, one for each line: the first stays."""
    kept: dict[tuple[str, int], Mark] = {}
    for mark in marks:
        kept.setdefault((mark.place.file, mark.place.line), mark)
    return list(kept.values())


def call_of(spot: Spot | None) -> ast.Call | None:
    """The call at a spot."""
    node = spot.node if spot is not None else None
    return node if isinstance(node, ast.Call) else None


def retaining(spot: Spot | None, word: str = "retain_graph") -> tuple[Edit, ...]:
    """The edit that gives a call ``retain_graph=True``, or another such word."""
    call = call_of(spot)
    if spot is None or call is None:
        return ()
    for keyword in call.keywords:
        if keyword.arg == word:
            return (spot.source.replaced(keyword.value, "True"),)
    text = spot.source.text(call)
    if not text.endswith(")"):
        return ()
    inner = text[:-1].rstrip()
    comma = "" if inner.endswith(("(", ",")) else ", "
    return (spot.source.replaced(call, f"{inner}{comma}{word}=True)"),)


def detached(path: str, value: Any) -> str | None:
    """The expression for a state without its graph."""
    if isinstance(value, Tensor):
        return f"{path}.detach()"
    if type(value) in (tuple, list) and value and all(isinstance(part, Tensor) for part in value):
        inner = f"part.detach() for part in {path}"
        return f"tuple({inner})" if type(value) is tuple else f"[{inner}]"
    if isinstance(value, dict) and value and all(isinstance(part, Tensor) for part in value.values()):
        return f"{{key: part.detach() for key, part in {path}.items()}}"
    return None


def detaching(names: Sequence[Name]) -> tuple[list[str], list[tuple[Frame, str]]]:
    """The lines that detach states at the end of a turn, and the variables whose states they are."""
    lines: list[str] = []
    variables: list[tuple[Frame, str]] = []
    for name in names:
        frame, variable = name.held.frame, name.held.variable
        if (frame, variable) in variables:
            continue
        text = detached(variable, frame.local.get(variable))
        if text is not None:
            variables.append((frame, variable))
            lines.append(f"{variable} = {text}")
    return lines, variables


def at_start_of(source: Source, loop: Loop, lines: Sequence[str]) -> tuple[Edit, ...]:
    """The edit that puts lines at the start of a loop's body; none if the body is on the loop's own line."""
    first = loop.body[0]
    if not lines or first.lineno == loop.lineno:
        return ()
    return (source.inserted_before(first, "\n".join(lines)),)


def after(frame: Frame, lines: Sequence[str]) -> tuple[Edit, ...]:
    """The edit that puts lines after the statement where a frame was; none if it is not alone in its lines."""
    statement = frame.statement
    if statement is None or not lines:
        return ()
    block = frame.source.parent(statement)
    if block is not None and getattr(block, "lineno", 0) == statement.lineno:
        return ()
    return (frame.source.inserted_after(statement, "\n".join(lines)),)


def guarded(source: Source, loop: Loop, lines: Sequence[str], variables: Sequence[str]) -> list[str]:
    """The lines, each under a condition where its variable is None before the first turn."""
    before: dict[str, ast.expr] = {}
    for path, targets in written_in(source.scope(loop)).items():
        for target in targets:
            statement = source.statement(target)
            if target.lineno < loop.lineno and isinstance(statement, ast.Assign):
                before[path] = statement.value
    guards = []
    for line, variable in zip(lines, variables, strict=True):
        value = before.get(variable)
        empty = value is None or (isinstance(value, ast.Constant) and value.value is None)
        guards.append(f"if {variable} is not None:\n{textwrap.indent(line, '    ')}" if empty else line)
    return guards


def not_retain() -> str:
    """Why keeping the graph is no cure."""
    return say(
        "retain_graph=True: the pass would walk the old graphs again, so that their gradients count twice, memory and "
        "time grow with each turn, and after optimizer.step() the next error is that saved "
        "weights were modified in place."
    )


def alone(source: Source, statement: ast.stmt | None) -> bool:
    """Whether a statement has its lines for itself."""
    if statement is None or statement.end_lineno is None or statement.end_col_offset is None:
        return False
    before = source.lines[statement.lineno - 1].encode()[: statement.col_offset]
    after_it = source.lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
    return not before.strip() and not after_it.split("#")[0].strip()


def dropped(source: Source, statement: ast.stmt) -> tuple[Edit, ...]:
    """The edit that leaves a statement out; none if it shares its lines with others."""
    if not alone(source, statement):
        return ()
    block = source.parent(statement)
    only = any(value == [statement] for _, value in ast.iter_fields(block)) if block is not None else False
    last = statement.end_lineno or statement.lineno
    return (Edit(source.file, statement.lineno, last, f"{source.indent(statement.lineno)}pass" if only else None),)


def moved_into(source: Source, loop: Loop, statement: ast.Assign) -> tuple[Edit, ...]:
    """The edits that move a statement from before a loop to the start of its body."""
    first = loop.body[0]
    names = [each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    if (
        not alone(source, statement)
        or first.lineno == loop.lineno
        or len(names) != 1
        or statement.lineno != statement.end_lineno
    ):
        return ()
    used = [
        each
        for each in ast.walk(source.scope(loop))
        if isinstance(each, ast.Name) and each.id == names[0] and statement.lineno < each.lineno < loop.lineno
    ]
    if used:  # the value is needed before the loop too: compute it in both places
        return (source.inserted_before(first, source.text(statement)),)
    gone = Edit(source.file, statement.lineno, statement.lineno, None)
    return (gone, source.inserted_before(first, source.text(statement)))
