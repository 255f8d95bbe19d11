"""PB301: two backward passes from the same root."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Reentry
from pullback.diagnose.evidence.freed.flow import loops_around
from pullback.diagnose.evidence.freed.report import dropped, earlier_mark, failing_mark, of_kind, once_each
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class BackwardTwice(Cause):
    """`backward()` was called twice on the same root, and the first call freed the graph.

    A graph keeps the tensors that its backward needs. The first pass lets go of each as soon as it was used, so that
    memory does not grow; a second pass finds nothing. This happens where a call stands twice (once in a helper, once in
    the loop), or where the forward pass was computed once before a loop in which each turn calls `backward()`.

    Run the forward pass again before each backward pass, or drop the second call. Each backward pass *adds* to `.grad`:
    a second one over the same graph doubles the gradients, which is rarely meant. Only if the same graph is really
    differentiated twice (two sets of inputs, a Jacobian by rows) give `retain_graph=True` to all passes but the last.
    """

    code = "PB301"
    title = "A backward pass was started twice from the same root; the first one freed its graph."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "same")
        if found is None or case.asked is None or not case.asked.tensors:
            return None
        root = case.asked.tensors[0]
        name = case.name_of(root) or self._written(found) or "the root"
        marks = [failing_mark(case, found, say("the second pass over the graph of {name}", name=name))]
        made = case.line_of(root.grad_fn)
        if made is not None:
            marks.append(case.mark_at(made, say("the graph of {name} ends here", name=name)))
        marks += earlier_mark(found, say("this pass freed the graph"))
        looped = found.earlier is not None and found.earlier.spot is not None and self._repeats(found)
        return self.found(
            say(
                "{name} was differentiated before, and that pass freed what its graph kept. No forward pass has made a "
                "new graph since: {name} is still the same tensor.",
                name=name,
            ),
            once_each(marks) if not looped else marks,
            self._in_loop(name) if looped else self._second(found, name),
            tensors=[case.subject(root, "root", name)],
            useless=[
                say(
                    "retain_graph=True: the same gradients are added to .grad once more, so that they are doubled; if "
                    "the weights were stepped in between, it fails because they were modified in place."
                )
            ],
        )

    @staticmethod
    def _written(found: Reentry) -> str:
        call = found.call
        func = call.func if call is not None else None
        return found.asking.source.text(func.value) if found.asking and isinstance(func, ast.Attribute) else ""

    @staticmethod
    def _repeats(found: Reentry) -> bool:
        spot, asking = found.earlier and found.earlier.spot, found.asking
        return bool(spot and asking and spot.code is asking.code and spot.line == asking.line and loops_around(asking))

    @staticmethod
    def _in_loop(name: str) -> Fix:
        return Fix(
            say("Compute {name} inside the loop: each turn needs a forward pass of its own.", name=name),
            f"for ...:\n    {name} = ...    # {say('the forward pass, again in each turn')}\n    {name}.backward()",
        )

    @staticmethod
    def _second(found: Reentry, name: str) -> Fix:
        text = say("Drop this call, or run the forward pass again before it so that {name} is a new tensor.", name=name)
        code = f"{name} = ...    # {say('the forward pass again')}\n{name}.backward()"
        statement = found.asking.statement if found.asking is not None else None
        if found.asking is None or not isinstance(statement, ast.Expr) or statement.value is not found.asking.node:
            return Fix(text, code)
        return Fix(text, code, dropped(found.asking.source, statement), "medium")

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(3, 1)
        error = layer(torch.randn(5, 3)).square().mean()
        error.backward()
        print(error.item())
        error.backward()

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(3, 1)
        for _ in range(2):
            error = layer(torch.randn(5, 3)).square().mean()
            error.backward()
