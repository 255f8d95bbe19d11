"""PB304: a value with a graph that was computed once, before the loop."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Name, Reentry, cached_by, methods_of
from pullback.diagnose.evidence.freed.flow import events, path_of, written_in
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
        found = of_kind(case, "outside", "unknown")
        if found is not None and found.kind == "unknown":
            cached = cached_by(case, found)
            return self._cached(case, found, *cached) if cached is not None else None
        if found is None or found.name is None:
            return None
        name = found.name.held.path
        made, used = entry_marks(case, found, name)
        if found.name.held.owner is not None:
            made += _stored(case, found.name)
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
            self._fix(case, found, found.name),
            tensors=[case.subject(found.name.held.tensor, "computed once", name)],
            confidence="high" if found.certain else "medium",
            useless=[not_retain()],
        )

    def _cached(self, case: Case, found: Reentry, source: Source, function: ast.FunctionDef) -> Diagnosis:
        """The value is the result of a function under ``functools.lru_cache``."""
        name = f"{function.name}()"
        made, used = entry_marks(case, found, say("the result of {name}", name=name))
        returned = [each for each in ast.walk(function) if isinstance(each, ast.Return) and each.value is not None]
        what = say("{name} is computed here, once for the same arguments", name=name)
        marks = [
            failing_mark(case, found, say("this pass goes back through the result of {name} again", name=name)),
            *once_each([*made, *(marked(source, each, what, function.name) for each in returned[-1:]), *used]),
            *earlier_mark(found, say("in an earlier turn this pass freed its graph")),
        ]
        edits = tuple(
            Edit(source.file, each.lineno, each.end_lineno or each.lineno, None)
            for each in function.decorator_list
            if "cache" in source.text(each)
        )
        return self.found(
            say(
                "{name} keeps its results in a cache. The result has a graph; an earlier backward pass freed it, and "
                "the cache gives the same result again.",
                name=name,
            ),
            marks,
            Fix(
                say("Leave the cache out, so that each pass gets a result of its own."),
                f"def {function.name}({ast.unparse(function.args)}):    # {say('without the cache')}",
                edits,
                "high" if edits and made else "medium",
            ),
            confidence="high" if made else "medium",
            useless=[not_retain()],
            apart="" if made else say("the line that made the freed value"),
            wants="" if made or case.traced else say("Which lines made and used the freed value?"),
        )

    @staticmethod
    def _fix(case: Case, found: Reentry, name: Name) -> Fix:
        source, loop, variable = name.held.frame.source, name.loop, name.held.variable
        if name.held.owner is not None:
            return _in_methods(case, name, certain=found.certain)
        if (inner := _in_function(found, name)) is not None:
            return inner
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


def _in_function(found: Reentry, name: Name) -> Fix | None:
    """What to write instead where a function of the same file asks for the pass: a closure of an optimizer, say."""
    asking, held = found.asking, name.held
    if asking is None or asking.file != held.frame.file or held.path != held.variable:
        return None
    source, function = asking.source, asking.scope
    if not isinstance(function, ast.FunctionDef) or held.variable in {each.arg for each in function.args.args}:
        return None
    read = any(isinstance(each, ast.Name) and each.id == held.variable for each in ast.walk(function))
    targets = written_in(source.scope(function)).get(held.variable, [])
    statement = source.statement(targets[-1]) if targets else None
    if not read or not isinstance(statement, ast.Assign) or held.variable in written_in(function):
        return None
    text = say("Compute {name} in {function}(), where it is used.", name=held.variable, function=function.name)
    code, first = source.text(statement), function.body[0]
    edits: tuple[Edit, ...] = ()
    if alone(source, statement) and alone(source, first) and len(written_in(statement)) <= 1:
        gone = Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, None)
        edits = (gone, source.inserted_before(first, code))
    return Fix(text, code, edits, "high" if edits and found.certain else "medium")


def _is_empty(node: ast.expr | None) -> bool:
    """Whether a value is None or a container without anything in it, which something is put into later."""
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return not node.elts
    if isinstance(node, ast.Dict):
        return not node.keys
    called = getattr(node.func, "attr", "") or getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
    return called in {"deque", "list", "dict", "defaultdict", "OrderedDict", "set"}


def _writes(case: Case | None, name: Name) -> list[tuple[Source, ast.Assign]]:
    """The assignments to an attribute in the methods of its object; without any, those in the files that ran."""
    found = []
    for file, function, path in methods_of(name.held):
        source = source_of(file)
        for target in written_in(function).get(path, []):
            statement = source.statement(target)
            if isinstance(statement, ast.Assign) and not _is_empty(statement.value):
                found.append((source, statement))
    if found or case is None:
        return found
    for source in {frame.file: frame.source for frame in case.frames}.values():
        for each in ast.walk(source.tree):
            if not isinstance(each, ast.Assign) or _is_empty(each.value):
                continue
            if any(isinstance(one, ast.Attribute) and one.attr == name.held.attribute for one in each.targets):
                found.append((source, each))
    return found


def _put(name: Name) -> list[tuple[Source, ast.Call, str]]:
    """The calls that put something into a container that is an attribute, in the methods of its object."""
    found = []
    for file, function, path in methods_of(name.held):
        source = source_of(file)
        for each in ast.walk(function):
            if (
                isinstance(each, ast.Call)
                and isinstance(each.func, ast.Attribute)
                and each.func.attr in {"append", "appendleft", "extend", "insert", "add"}
                and path_of(each.func.value) == path
            ):
                found.append((source, each, function.name))
    return found


def _stored(case: Case, name: Name) -> list[Mark]:
    """The line that stores the attribute, or puts something into it; and the call of the method that does so."""
    if not name.held.path.endswith("]"):
        what = say("{name} is made here, once", name=name.held.path)
        return [
            marked(source, each, what, getattr(source.scope(each), "name", "<module>"))
            for source, each in _writes(case, name)[:1]
        ]
    what = say("it is put into {name} here", name=name.held.path.partition("[")[0])
    put = _put(name)
    marks = [marked(source, each, what, function) for source, each, function in put[:1]]
    return marks + [marked(frame.source, each, what, frame.place.function) for frame, each in _putting(case, put)[:1]]


def _putting(case: Case, put: Sequence[tuple[Source, ast.Call, str]]) -> list[tuple[Frame, ast.Call]]:
    """The calls, in the functions that ran, of the methods that put something into a container."""
    names = {function for _, _, function in put}
    return [
        (frame, each)
        for frame in reversed(case.frames)
        for each in ast.walk(frame.scope)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in names
    ]


def _without_graph(case: Case, name: Name) -> Fix:
    """What to write instead where the value is kept in a container: store it without its graph."""
    of = name.held.path.partition("[")[0]
    text = say("Keep it without its graph: detach() what is put into {name}.", name=of)
    put = _put(name)
    for frame, call in _putting(case, put):
        for each in call.args:
            value = frame.evaluated(each)
            if isinstance(value, Tensor) and value.requires_grad and isinstance(each, ast.Name):
                edit = frame.source.replaced(each, f"{each.id}.detach()")
                return Fix(text, (edit.text or "").strip(), (edit,), "medium")
    if put and len(put[0][1].args) == 1:
        argument = put[0][0].text(put[0][1].args[0])
        return Fix(text, f"{put[0][0].text(put[0][1].func)}({argument}.detach())")
    return Fix(text, "")


def _unguarded(source: Source, statement: ast.Assign) -> tuple[Edit, ...]:
    """The edit that computes an attribute each time: ``if self.x is None: self.x = ...`` loses its condition."""
    guard, target = source.parent(statement), statement.targets[0]
    if not isinstance(guard, ast.If) or guard.body != [statement] or guard.orelse or not alone(source, guard):
        return ()
    if not isinstance(target, ast.Attribute) or target.attr not in source.text(guard.test):
        return ()
    return (source.replaced(guard, source.text(statement)),)


def _in_methods(case: Case, name: Name, *, certain: bool) -> Fix:
    """What to write instead where the value is an attribute: make it where it is used."""
    if name.held.path.endswith("]"):
        return _without_graph(case, name)
    text = say("Compute {name} where it is used, in each forward pass.", name=f"self.{name.held.attribute}")
    writes = _writes(case, name)
    if len(writes) != 1:
        return Fix(text, f"self.{name.held.attribute} = ...")
    source, statement = writes[0]
    code = source.text(statement)
    if edits := _unguarded(source, statement):
        return Fix(text, code, edits, "high" if certain else "medium")
    used = {each.id for each in ast.walk(statement.value) if isinstance(each, ast.Name)} - set(dir(builtins))
    inserted: list[Edit] = []
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
            inserted.append(source.inserted_before(first, code))
    if inserted and alone(source, statement):
        gone = Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, None)
        return Fix(text, code, (gone, *inserted), "high" if certain else "medium")
    if getattr(source.scope(statement), "name", "") != "__init__":
        return Fix(text, code)
    value = source.text(statement.value)
    whole = value if isinstance(statement.value, ast.Name | ast.Call | ast.Attribute) else f"({value})"
    edit = source.replaced(statement.value, f"{whole}.detach()")
    return Fix(
        say(
            "If {name} is meant to be constant, detach it; if not, compute it where it is used, in each forward pass.",
            name=f"self.{name.held.attribute}",
        ),
        source.code(edit).strip(),
        (edit,),
        "medium",
    )
