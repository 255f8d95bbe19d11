"""PB407: a retained graph whose weights an optimizer has stepped."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import reached
from pullback.diagnose.evidence.freed.flow import carried, loops_around, written_in
from pullback.diagnose.evidence.freed.report import at_start_of, detached, marked, moved_into, once_each
from pullback.diagnose.evidence.overwritten.find import MODIFIED, Overwritten
from pullback.diagnose.evidence.overwritten.report import name_of, of_kind, sentence, subjects, why_not_data
from pullback.diagnose.evidence.overwritten.steps import step_marks
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class RetainedThenStepped(Cause):
    """`backward(retain_graph=True)` kept the graph for another pass, but `optimizer.step()` came in between.

    `retain_graph=True` is often given to silence "backward through the graph a second time". It keeps the graph,
    yet that graph was computed with the weights before the step; these were changed in place, so that its gradients
    cannot be computed any more, and would be those of an outdated loss.

    Run the forward pass again in each turn, and leave `retain_graph=True` out.
    """

    code = "PB407"
    title = "A graph was kept with retain_graph=True, and the optimizer changed the weights that it needs."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "kept")
        if found is None:
            return None
        name = name_of(found)
        over = _carried_over(found)
        edits = _detached_inside(found, over) if over else _forward_inside(case, found)
        return self.found(
            sentence(found)
            + " "
            + say(
                "The graph was kept by retain_graph=True, but an optimizer's step() has changed {name} since.",
                name=name,
            ),
            once_each([*step_marks(case, found), *_taken_over(found, over)]),
            Fix(
                say("Detach what is carried over from turn to turn, and leave retain_graph=True out.")
                if over
                else say("Run the forward pass again in each turn, without retain_graph=True."),
                "\n".join(edit.text.strip() for edit in edits if edit.text)
                or "for ...:\n    loss = ...\n    loss.backward()",
                edits,
                "high" if edits and not any("rand" in (edit.text or "") for edit in edits) else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[
                say(
                    "retain_graph=True: it is what brought the program here: the graph outlived "
                    "the weights it was made with."
                ),
                why_not_data(),
            ],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        error = net(torch.randn(4, 2)).square().mean()
        for _ in range(3):
            error.backward(retain_graph=True)
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            error = net(torch.randn(4, 2)).square().mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()


def _carried_over(found: Overwritten) -> dict[str, str]:
    """The variables that a loop takes over from turn to turn with the graph that was kept: each without its graph."""
    loops = loops_around(found.asking) if found.asking is not None else []
    if found.asking is None or not loops or found.reader is None:
        return {}
    lines = {}
    for name in carried(loops[0].body):
        value = found.asking.local.get(name)
        parts = value if isinstance(value, tuple | list) else [value]
        nodes = [each.grad_fn for each in parts if isinstance(each, Tensor) and each.grad_fn is not None]
        text = detached(name, value)
        if text is not None and found.reader in reached(nodes):
            lines[name] = text
    return lines


def _taken_over(found: Overwritten, over: dict[str, str]) -> list[Mark]:
    """The lines of the loop that make what the next turn takes over."""
    if found.asking is None or not over:
        return []
    source, loop = found.asking.source, loops_around(found.asking)[0]
    function = found.asking.place.function
    return [
        marked(source, statement, say("{name} is taken over from turn to turn here", name=name), function)
        for name in over
        for target in written_in(loop).get(name, [])[-1:]
        if (statement := source.statement(target)) is not None
    ]


def _detached_inside(found: Overwritten, over: dict[str, str]) -> tuple[Edit, ...]:
    """The edits that detach such variables at the start of each turn, and let the graph go."""
    assert found.asking is not None
    call, source = found.asking.node, found.asking.source
    started = at_start_of(source, loops_around(found.asking)[0], [f"{name} = {text}" for name, text in over.items()])
    kept = [each for each in call.keywords if each.arg == "retain_graph"] if isinstance(call, ast.Call) else []
    if not started or not isinstance(call, ast.Call) or len(kept) != 1 or call.lineno != call.end_lineno:
        return ()
    given = [source.text(each) for each in (*call.args, *call.keywords) if each is not kept[0]]
    return (*started, source.replaced(call, f"{source.text(call.func)}({', '.join(given)})"))


def _forward_inside(case: Case, found: Overwritten) -> tuple[Edit, ...]:
    """The edits that move the statement that makes the root into the loop, and let its graph go."""
    asking = found.asking
    loops = loops_around(asking) if asking is not None else []
    call = asking.node if asking is not None else None
    if asking is None or not loops or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ()
    root, source = call.func.value, asking.source
    if not isinstance(root, ast.Name):
        return ()
    loop = loops[0]
    targets = [each for each in written_in(source.scope(loop)).get(root.id, []) if each.lineno < loop.lineno]
    statement = source.statement(targets[-1]) if targets else None
    if not isinstance(statement, ast.Assign) or root.id in written_in(loop):
        return ()
    moved = moved_into(source, loop, statement)
    retain = [each for each in call.keywords if each.arg == "retain_graph"]
    if not moved or len(call.keywords) != 1 or not retain or call.args or call.lineno != call.end_lineno:
        return ()
    return (*moved, source.replaced(call, f"{root.id}.backward()"))
