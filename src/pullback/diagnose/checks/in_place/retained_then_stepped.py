"""PB407: a retained graph whose weights an optimizer has stepped."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import loops_around, written_in
from pullback.diagnose.evidence.freed.report import moved_into
from pullback.diagnose.evidence.overwritten.find import MODIFIED, Overwritten
from pullback.diagnose.evidence.overwritten.report import name_of, of_kind, sentence, subjects, why_not_data
from pullback.diagnose.evidence.overwritten.steps import step_marks
from pullback.diagnose.values import Diagnosis, Edit, Fix
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
        edits = _forward_inside(case, found)
        return self.found(
            sentence(found)
            + " "
            + say(
                "The graph was kept by retain_graph=True, but an optimizer's step() has changed {name} since.",
                name=name,
            ),
            step_marks(case, found),
            Fix(
                say("Run the forward pass again in each turn, without retain_graph=True."),
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
