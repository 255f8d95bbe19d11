"""PB304: a value with a graph that was computed once, before the loop."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Name, Reentry, methods_of
from pullback.diagnose.evidence.freed.flow import events, written_in
from pullback.diagnose.evidence.freed.report import (
    alone,
    earlier_mark,
    entry_marks,
    failing_mark,
    marked,
    moved_into,
    not_retain,
    of_kind,
    once_each,
    written_marks,
)
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class ComputedOnce(Cause):
    """A value that depends on parameters was computed once before the loop, and each turn differentiates through it.

    The first turn's `backward()` frees the graph of that value; the second turn uses the same value and meets the freed
    graph. Even if the graph were kept, the value would be stale: the optimizer has moved the parameters that it was
    computed from.

    Move the computation into the loop, so that each turn makes it anew. If the value is meant to be constant (features
    of a frozen network), compute it under `torch.no_grad()` or detach it once: `features = features.detach()`.
    """

    code = "PB304"
    title = "A value was computed once and used for several backward passes; the first one freed its graph."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "outside")
        if found is None or found.name is None:
            return None
        name = found.name.held.path
        made, used = entry_marks(case, found, name)
        if found.name.held.owner is not None:
            made += _stored(found.name)
        made = made or written_marks(found.name, say("{name} was made here, once", name=name))
        marks = [
            failing_mark(case, found, say("this pass goes back through {name} again", name=name)),
            *once_each([*made, *used]),
            *earlier_mark(found, say("in an earlier turn this pass freed the graph of {name}", name=name)),
        ]
        return self.found(
            say(
                "{name} was made once and has a graph ({node}). An earlier backward pass freed it, and the same {name} "
                "is used again.",
                name=name,
                node=found.entry.freed.name() if found.entry else "?",
            ),
            marks,
            self._fix(found, found.name),
            tensors=[case.subject(found.name.held.tensor, "computed once", name)],
            confidence="high" if found.certain else "medium",
            useless=[not_retain()],
        )

    @staticmethod
    def _fix(found: Reentry, name: Name) -> Fix:
        source, loop, variable = name.held.frame.source, name.loop, name.held.variable
        if name.held.owner is not None:
            return _in_methods(name, certain=found.certain)
        text = say("Compute {name} inside the loop.", name=variable)
        edits: tuple[Edit, ...] = ()
        code = f"for ...:\n    {variable} = ..."
        if loop is not None and name.held.frame.file == source.file and not name.held.attribute:
            scope = source.scope(loop)
            targets = [each for each in written_in(scope).get(variable, []) if each.lineno < loop.lineno]
            statement = source.statement(targets[-1]) if targets else None
            if isinstance(statement, ast.Assign) and source.scope(statement) is scope:
                code = source.text(statement)
                edits = moved_into(source, loop, statement)
        return Fix(text, code, edits, "high" if edits and found.certain else "medium")

    @staticmethod
    def bad():
        import torch

        scale = torch.ones(3, requires_grad=True)
        weights = scale.exp()
        for _ in range(2):
            error = (weights * torch.randn(3)).square().sum()
            error.backward()

    @staticmethod
    def good():
        import torch

        scale = torch.ones(3, requires_grad=True)
        for _ in range(2):
            weights = scale.exp()
            error = (weights * torch.randn(3)).square().sum()
            error.backward()


def _writes(name: Name) -> list[tuple[Source, ast.Assign]]:
    """The assignments to an attribute in the methods of its object."""
    found = []
    for file, function, path in methods_of(name.held):
        source = source_of(file)
        for target in written_in(function).get(path, []):
            statement = source.statement(target)
            if isinstance(statement, ast.Assign):
                found.append((source, statement))
    return found


def _stored(name: Name) -> list[Mark]:
    """The line that stores the attribute."""
    what = say("{name} is made here, once", name=name.held.path)
    return [marked(source, each, what) for source, each in _writes(name)[:1]]


def _in_methods(name: Name, *, certain: bool) -> Fix:
    """What to write instead where the value is an attribute: make it where it is used."""
    text = say("Compute {name} where it is used, in each forward pass.", name=f"self.{name.held.attribute}")
    writes = _writes(name)
    if len(writes) != 1:
        return Fix(text, f"self.{name.held.attribute} = ...")
    source, statement = writes[0]
    code = source.text(statement)
    used = {each.id for each in ast.walk(statement.value) if isinstance(each, ast.Name)}
    edits: list[Edit] = []
    for file, function, path in methods_of(name.held):
        reads = [each for kind, which, each in events(function.body) if kind == "read" and which == path]
        own = path.partition(".")[0]
        first = function.body[0]
        if (
            reads
            and file == source.file
            and used <= {own, "torch", "nn", "F", "math"}
            and first.lineno > function.lineno
        ):
            edits.append(source.inserted_before(first, code))
    if not edits or not alone(source, statement):
        return Fix(text, code)
    gone = Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, None)
    return Fix(text, code, (gone, *edits), "high" if certain else "medium")
