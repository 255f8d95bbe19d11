"""PB303: two losses with a common part, differentiated one after the other."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Reentry
from pullback.diagnose.evidence.freed.flow import Loop, loops_around, written_in
from pullback.diagnose.evidence.freed.report import (
    alone,
    call_of,
    dropped,
    earlier_mark,
    entry_marks,
    failing_mark,
    marked,
    of_kind,
    once_each,
    retaining,
    written_marks,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say

# What stands for the code between two calls that are not in one function.
_ELSEWHERE = ast.Attribute(ast.Name(""), "step")


class SharedTrunk(Cause):
    """Two losses were computed from one value, and the backward pass of the first freed the part that they share.

    Everything behind the shared value (a trunk under two heads, an actor's action that a critic judges, a generator's
    image that the discriminator sees twice) belongs to both graphs, and is freed by the first `backward()`.

    If both losses train the shared part, differentiate their sum: `(loss_a + loss_b).backward()`: one pass, the same
    gradients. If the first loss is not meant to train it, cut there: `D(fake.detach())` for the discriminator's loss.
    If each loss has its own optimizer and the order matters, compute both losses' gradients before any `step()`.

    `retain_graph=True` on the first call works only while nothing steps in between: an `optimizer.step()` changes the
    weights that the retained graph needs, and the next error is about a modification in place.
    """

    code = "PB303"
    title = "Two losses share a part of their graph, and the backward pass of the first one freed it."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "trunk", "again")
        if found is None or found.entry is None:
            return None
        held = found.name.held if found.name else None
        name = held.path if held else say("the shared value")
        made, used = entry_marks(case, found, name)
        if not made and found.name is not None:
            made = written_marks(found.name, say("{name} was made here", name=name))
        marks = [failing_mark(case, found, say("this pass needs the graph behind {name} again", name=name)), *made]
        passed = earlier_mark(found, say("this pass freed the graph behind {name}", name=name))
        first = _cut_marks(found, name) if found.kind == "again" else []
        marks += [*used, *passed] if found.kind == "trunk" else [*first, *passed, *used]
        root = case.text(case.root) or say("The root")
        known = found.kind == "trunk" or held is not None or case.line_of(found.entry.freed) is not None
        certain = found.certain and known
        return self.found(
            say(
                "{root} was computed from a value that the root of an earlier backward pass was computed from as well. "
                "That pass freed the graph behind it.",
                root=root,
            )
            if held is None and not made
            else say(
                "{root} was computed from {name}, and so was the root of an earlier backward pass. That pass freed the "
                "graph behind {name} ({node}).",
                root=root,
                name=name,
                node=found.entry.freed.name(),
            ),
            once_each(marks),
            self._fix(case, found, name),
            tensors=[case.subject(held.tensor, "shared", held.path)] if held else [],
            confidence="high" if certain else "medium",
            useless=[
                say(
                    "retain_graph=True on the first pass: right only if no optimizer steps between the two passes; "
                    "otherwise the weights that the graph kept are modified, and the gradients would be stale."
                )
            ],
            apart="" if certain else say("the line that made the shared value"),
            wants="" if certain or case.traced else say("Which line made the value that both passes need?"),
        )

    def _fix(self, case: Case, found: Reentry, name: str) -> Fix:
        first, second = call_of(found.earlier.spot if found.earlier else None), found.call
        if asks_for_gradients(first) and found.earlier is not None:
            kept = retaining(found.earlier.spot, "create_graph")
            return Fix(
                say(
                    "Keep the graph in the first call: create_graph=True if its gradients are a part of the loss (a "
                    "gradient penalty); retain_graph=True is enough if not."
                ),
                (kept[0].text or "").strip() if kept else "create_graph=True",
                kept,
                "medium",
            )
        a, b = _differentiated(first), _differentiated(second)
        looped = _sum_over(found, b)
        if looped is not None:
            return looped
        source = found.asking.source if found.asking else None
        if source is None or a is None or b is None or found.earlier is None or found.earlier.spot is None:
            return Fix(say("Differentiate the sum of both losses in one pass."), "(loss_a + loss_b).backward()")
        one, two = found.earlier.spot.source.text(a), source.text(b)
        between = self._between(found, first, second)
        if found.kind == "again" and any(isinstance(each, ast.Attribute) and each.attr == "step" for each in between):
            edits: tuple[Edit, ...] = _cut_before(found, first)
            code = (
                source.code(*edits).strip()
                or f"{one} = ...    # {say('computed from {text}', text=f'{name}.detach()')}"
            )
            text = say("If the first loss is not meant to train what made {name}, cut it there.", name=name)
            own = bool(between) and between != [_ELSEWHERE]
            return Fix(text, code, edits, "high" if edits and found.certain and own else "medium")
        edits = ()
        if any(getattr(each, "attr", "") in {"step", "zero_grad", "grad"} for each in between):
            if cut := _cut_in(found, a, first):
                text = say("If the first loss is not meant to train what made {name}, cut it there.", name=name)
                return Fix(text, source.code(*cut).strip(), cut, "medium")
        else:
            statement = source.statement(first) if first is not None else None
            if isinstance(statement, ast.Expr) and (gone := dropped(source, statement)):
                edits = (*gone, source.replaced(b, f"({one} + {two})"))
        joined = f"({one} + {two}).backward()"
        return Fix(
            say("Differentiate the sum of both losses in one pass: the gradients are the same."),
            joined,
            edits,
            "high" if edits and found.certain else "medium",
        )

    @staticmethod
    def _between(found: Reentry, first: ast.Call | None, second: ast.Call | None) -> list[ast.AST]:
        """What is written between the two calls, if they stand in one function."""
        asking = found.asking
        spot = found.earlier.spot if found.earlier else None
        if asking is None or spot is None or first is None or second is None or spot.code is not asking.code:
            return [_ELSEWHERE]
        low, high = sorted((first.lineno, second.lineno))
        return [
            each
            for each in ast.walk(asking.scope)
            if isinstance(each, ast.expr) and low <= each.lineno <= high and (each.lineno, each.col_offset) >= (
                first.lineno, first.end_col_offset or 0)
        ]  # fmt: skip

    @staticmethod
    def bad():
        import torch

        body, left, right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        shared = body(torch.randn(3, 4)).sigmoid()
        first = left(shared).mean()
        second = right(shared).mean()
        first.backward()
        second.backward()

    @staticmethod
    def good():
        import torch

        body, left, right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        shared = body(torch.randn(3, 4)).sigmoid()
        first = left(shared).mean()
        second = right(shared).mean()
        (first + second).backward()


def asks_for_gradients(call: ast.Call | None) -> bool:
    """Whether it is a call of ``torch.autograd.grad``."""
    return call is not None and (getattr(call.func, "attr", "") or getattr(call.func, "id", "")) == "grad"


def _sum_over(found: Reentry, root: ast.expr | None) -> Fix | None:
    """The cure where a loop over some losses differentiates one after the other: ``for loss in losses``."""
    asking = found.asking
    if asking is None or not isinstance(root, ast.Name) or found.earlier is None or found.earlier.spot is None:
        return None
    if (found.earlier.spot.code, found.earlier.spot.instruction) != (asking.code, asking.instruction):
        return None
    text = say("Differentiate the sum of both losses in one pass: the gradients are the same.")
    for loop in loops_around(asking):
        if isinstance(loop, ast.For) and any(
            isinstance(each, ast.Name) and each.id == root.id for each in ast.walk(loop.target)
        ):
            whole = asking.source.text(loop.iter)
            if isinstance(loop.target, ast.Tuple):
                whole = f"{whole[: -len('.items()')]}.values()" if whole.endswith(".items()") else ""
            if not whole:
                return Fix(text, f"total = total + {root.id}    # total.backward()")
            code = f"sum({whole}).backward()"
            only = len(loop.body) == 1 and not loop.orelse and alone(asking.source, loop)
            edits = (asking.source.replaced(loop, code),) if only else ()
            return Fix(text, code, edits, "high" if edits and found.certain else "medium")
        elif fix := _summed(found, loop, root.id, text):
            return fix
    return Fix(text, f"total = total + {root.id}    # total.backward()")


def _summed(found: Reentry, loop: Loop, root: str, text: str) -> Fix | None:
    """The cure where each turn computes its loss: add them up, and differentiate the sum after the loop."""
    asking = found.asking
    statement = asking.statement if asking is not None else None
    names = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name)}
    read = {each.attr for each in ast.walk(loop) if isinstance(each, ast.Attribute)}
    if read & {"step", "zero_grad", "grad"} or "total" in names:
        return None
    if asking is None or not isinstance(statement, ast.Expr) or statement not in loop.body:
        return None
    source = asking.source
    if not alone(source, statement) or source.indent(loop.lineno) == source.indent(statement.lineno):
        return None
    edits = (
        source.inserted_before(loop, "total = 0"),
        source.replaced(statement, f"total = total + {root}"),
        source.inserted_after(loop, "total.backward()"),
    )
    code = f"total = 0\n{source.lines[loop.lineno - 1].strip()}\n    ...\n    total = total + {root}\ntotal.backward()"
    return Fix(text, code, edits, "high" if found.certain else "medium")


def _differentiated(call: ast.Call | None) -> ast.expr | None:
    """``loss`` in ``loss.backward()`` without arguments."""
    if call is None or call.args or call.keywords or not isinstance(call.func, ast.Attribute):
        return None
    return call.func.value if call.func.attr == "backward" else None


def _cut_before(found: Reentry, first: ast.Call | None) -> tuple[Edit, ...]:
    """The edits that detach the shared value wherever it is read before the first pass."""
    held = found.name.held if found.name else None
    spot = found.earlier.spot if found.earlier else None
    reads = _reads_before(found, first)
    if held is None or spot is None or len({each.lineno for each in reads}) != len(reads):
        return ()
    return tuple(spot.source.replaced(each, f"{held.variable}.detach()") for each in reads)


def _cut_in(found: Reentry, root: ast.expr, first: ast.Call | None) -> tuple[Edit, ...]:
    """The edit that detaches the shared value in the line that computes the first loss, if that reads it once."""
    held = found.name.held if found.name else None
    spot = found.earlier.spot if found.earlier else None
    if held is None or spot is None or first is None or held.path != held.variable or not isinstance(root, ast.Name):
        return ()
    targets = [each for each in written_in(spot.scope).get(root.id, []) if each.lineno < first.lineno]
    statement = spot.source.statement(targets[-1]) if targets else None
    reads = (
        [each for each in ast.walk(statement) if isinstance(each, ast.Name) and each.id == held.variable]
        if statement
        else []
    )
    return (spot.source.replaced(reads[0], f"{held.variable}.detach()"),) if len(reads) == 1 else ()


def _reads_before(found: Reentry, first: ast.Call | None) -> list[ast.Name]:
    """Where the function that asked for the first pass reads the shared value before it."""
    held = found.name.held if found.name else None
    spot = found.earlier.spot if found.earlier else None
    if held is None or first is None or spot is None or held.path != held.variable:
        return []
    scope = spot.scope
    made = [each.lineno for each in written_in(scope).get(held.variable, []) if each.lineno < first.lineno]
    given = isinstance(scope, ast.FunctionDef) and held.variable in {each.arg for each in scope.args.args}
    if not made and not given:
        return []
    return [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Name)
        and isinstance(each.ctx, ast.Load)
        and each.id == held.variable
        and max(made, default=0) < each.lineno < first.lineno
    ]


def _cut_marks(found: Reentry, name: str) -> list[Mark]:
    """The line that computes the first loss from the shared value."""
    spot = found.earlier.spot if found.earlier else None
    reads = _reads_before(found, call_of(spot))
    if spot is None or not reads:
        return []
    what = say("the first loss is computed from {name} here", name=name)
    return [marked(spot.source, reads[0], what, spot.place.function)]
