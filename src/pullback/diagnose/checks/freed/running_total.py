"""PB306: the backward pass of a total that still holds the graphs of earlier turns."""

from __future__ import annotations

import ast
from collections import deque

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.freed.find import ADDING, SECOND_TIME, Name, Reentry, fills, update_of
from pullback.diagnose.evidence.freed.flow import Loop, path_of, written_in
from pullback.diagnose.evidence.freed.names import Held
from pullback.diagnose.evidence.freed.report import (
    after,
    alone,
    earlier_mark,
    failing_mark,
    marked,
    not_retain,
    of_kind,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class RunningTotal(Cause):
    """`backward()` was called on a running total, whose earlier terms were differentiated in earlier turns.

    `total = total + loss` makes a new tensor whose graph holds the graphs of all terms so far. Calling
    `total.backward()` in each turn differentiates the first term in every turn; its graph was freed by the first.

    Differentiate the loss of the turn, and add up its value only: `loss.backward()`, `total += loss.detach()` (or
    `loss.item()`). If one step is to be made for several batches, either call `loss.backward()` for each and step
    afterwards, or call `total.backward()` once after the loop.
    """

    code = "PB306"
    title = "A running total was differentiated in each turn; its earlier terms had been freed by the turns before."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "total")
        if found is None or found.name is None or (found.name.loop is None and found.name.held.owner is None):
            return None
        held, frame = found.name.held, found.name.held.frame
        name = held.variable if held.owner is None else held.path.rpartition("[")[0]
        update = update_of(frame, found.name.loop, name) if found.name.loop is not None else None
        marks = [failing_mark(case, found, say("{name} holds the graphs of all turns so far", name=name))]
        if update is None:
            marks += _filling(case, found.name)
        else:
            marks.append(
                marked(frame.source, update, say("each turn's loss is added here", name=name), frame.place.function)
            )
        marks += earlier_mark(found, say("in the turn before, this pass freed the earlier terms of {name}", name=name))
        collected = _collected(case, found.name)
        return self.found(
            say(
                "{name} keeps what earlier turns of the loop put into it. Those were differentiated then, which freed "
                "their graphs; this turn differentiates them again.",
                name=name,
            )
            if collected
            else say(
                "{name} is a sum over the turns of the loop. Its earlier terms were differentiated in earlier turns, "
                "which freed their graphs; this turn differentiates them again.",
                name=name,
            ),
            marks,
            _emptied(found, held, collected) if collected else self._fix(found, found.name, update),
            tensors=[case.subject(held.tensor, "total", name)],
            confidence="high" if found.certain else "medium",
            useless=[not_retain()],
        )

    @staticmethod
    def _fix(found: Reentry, name: Name, update: ast.stmt | None) -> Fix:
        source, total = name.held.frame.source, name.held.variable
        text = say("Differentiate the loss of this turn only, and add its value to the total without its graph.")
        term = _term(update, total)
        if term is None or update is None:
            keeping = f"{total} += loss.detach()" if name.held.path == total else f"{total}.append(loss.detach())"
            return Fix(text, f"loss.backward()\n{keeping}")
        written = source.text(term)
        used = {each.id for each in ast.walk(source.tree) if isinstance(each, ast.Name)}
        loss = written if written.isidentifier() else "loss" if "loss" not in used else "loss_of_turn"
        lines = ([] if loss == written else [f"{loss} = {written}"]) + [f"{total} = {total} + {loss}.detach()"]
        edits: tuple[Edit, ...] = ()
        call = found.call
        root = call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
        if alone(source, update) and root is not None and path_of(root) == total and name.held.frame is found.asking:
            indent = source.indent(update.lineno)
            summed = Edit(
                source.file,
                update.lineno,
                update.end_lineno or update.lineno,
                "\n".join(indent + each for each in lines),
            )
            edits = (summed, source.replaced(root, loss))
        return Fix(
            text, "\n".join([*lines, f"{loss}.backward()"]), edits, "high" if edits and found.certain else "medium"
        )

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(2, 1)
        whole = 0.0
        for _ in range(3):
            whole += layer(torch.randn(4, 2)).exp().mean()
            whole.backward()

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(2, 1)
        whole = 0.0
        for _ in range(3):
            part = layer(torch.randn(4, 2)).exp().mean()
            whole += part.item()
            part.backward()


def _collected(case: Case, name: Name) -> list[str]:
    """The lists that are filled for each pass: log-probabilities and rewards of an episode, say."""
    loop, held = name.loop, name.held
    if held.owner is not None:
        kept = [each for each, value in vars(held.owner).items() if isinstance(value, list | deque) and value]
        filled = [each for each in kept if each != held.attribute and _adding(case, each)]
        prefix = held.path.rpartition("[")[0].rpartition(".")[0]
        return [f"{prefix}.{each}" for each in (held.attribute, *filled)]
    if held.path == held.variable or loop is None:
        return []
    inner = [each for each in ast.walk(loop) if isinstance(each, Loop) and each is not loop]
    if not any(fills(each, held.variable) for each in inner):
        return []
    local, written = held.frame.local, written_in(loop)
    lists = [each for each, value in local.items() if isinstance(value, list) and each not in written]
    return [
        held.variable,
        *(each for each in lists if each != held.variable and any(fills(one, each) for one in inner)),
    ]


def _emptied(found: Reentry, held: Held, lists: list[str]) -> Fix:
    """The lists made anew at the beginning of each turn; those of an object emptied when their pass has been."""
    text = say("Begin each turn with an empty {name}.", name=lists[0])
    edits: tuple[Edit, ...] = ()
    if held.owner is not None:
        code = "\n".join(f"{each}.clear()" for each in lists)
        asking = found.asking
        if asking is not None and _value(asking, lists[0]) is vars(held.owner).get(held.attribute):
            later = [each for each in ast.walk(asking.scope) if getattr(each, "lineno", 0) > asking.line]
            read = {each.attr for each in later if isinstance(each, ast.Attribute)}
            edits = () if any(each.rpartition(".")[2] in read for each in lists) else after(asking, code.split("\n"))
    else:
        source, loop = held.frame.source, found.name.loop if found.name else None
        code = f"{', '.join(lists)} = {', '.join('[]' for _ in lists)}"
        if loop is not None and alone(source, loop.body[0]) and isinstance(held.frame.local.get(held.variable), list):
            edits = (source.inserted_before(loop.body[0], code),)
    return Fix(text, code, edits, "high" if edits and found.certain else "medium")


def _value(frame: Frame, path: str) -> object:
    """What a path stands for in a frame."""
    return frame.evaluated(ast.parse(path, mode="eval").body)


def _adding(case: Case, attribute: str) -> list[Mark]:
    """The lines that put something into the attribute of an object: ``self.losses.append(loss)``."""
    found = []
    for source in {frame.file: frame.source for frame in case.frames}.values():
        for node in ast.walk(source.tree):
            func = node.func if isinstance(node, ast.Call) else None
            if not isinstance(func, ast.Attribute) or func.attr not in ADDING:
                continue
            if isinstance(func.value, ast.Attribute) and func.value.attr == attribute and isinstance(node, ast.Call):
                what = say("each turn's loss is kept in {name} here", name=source.text(func.value))
                found.append(marked(source, node, what, getattr(source.scope(node), "name", "")))
    return found


def _term(update: ast.stmt | None, total: str) -> ast.expr | None:
    """What is added to the total."""
    if isinstance(update, ast.AugAssign):
        return update.value
    if isinstance(update, ast.Assign) and isinstance(update.value, ast.BinOp):
        left, right = update.value.left, update.value.right
        return right if path_of(left) == total else left
    return None


def _filling(case: Case, name: Name) -> list[Mark]:
    """The line that puts each turn's loss into a list."""
    if name.held.owner is not None:
        return _adding(case, name.held.attribute)[:1]
    source, variable = name.held.frame.source, name.held.variable
    for node in ast.walk(name.loop) if name.loop is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and path_of(node.func.value) == variable:
            return [marked(source, node, say("each turn's loss is kept in {name} here", name=variable))]
    return []
