"""PB302: a state that each turn of a loop takes over with the graph of the turn before."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Reentry
from pullback.diagnose.evidence.freed.report import (
    after,
    at_start_of,
    detaching,
    earlier_mark,
    entry_marks,
    failing_mark,
    guarded,
    not_retain,
    of_kind,
    once_each,
    renewed_marks,
    written_marks,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class HiddenState(Cause):
    """A variable carries a tensor, and with it its graph, from one turn of a loop into the next.

    The usual case is the hidden state of a recurrent network: `out, h = rnn(x, h)`. The state of the turn before was
    computed from the state before that, and so on: the graph of each turn hangs on that of all turns before it, and
    their part was freed by the `backward()` of the turn before.

    Cut it at the start of each turn: `h = h.detach()` (an LSTM has a pair: `h = tuple(part.detach() for part in h)`).
    The value is taken over, the history is not: truncated backpropagation through time. If the history is wanted, add
    the losses of several turns and call `backward()` once for them all.

    `retain_graph=True` is not a cure: each pass would walk back to the first turn, ever slower, and the optimizer has
    changed the weights that those old graphs need. `h.data` does not cut it more than `detach()`, and hides errors.
    """

    code = "PB302"
    title = "A value was carried from one turn of a loop into the next with its graph, which the turn before had freed."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "carried")
        if found is None or found.name is None:
            return None
        names = [each for each in found.names if each.kind == "carried"]
        variables = list(dict.fromkeys(each.held.variable for each in names))
        called = ", ".join(variables)
        made, used = entry_marks(case, found, called)
        marks = [
            failing_mark(case, found, say("this pass goes back through {name} into the turn before", name=called)),
            *made,
            *earlier_mark(found, say("in the turn before, this pass freed the graph of {name}", name=called)),
            *used,
            *(
                written_marks(found.name, say("{name} is taken over from turn to turn here", name=called))
                or renewed_marks(case, found.name.held, say("{name} is taken over from turn to turn here", name=called))
            ),
        ]
        return self.found(
            say(
                "{name} still hangs on the graph of the turn before it: its grad_fn is {node}, "
                "and the backward pass of "
                "that turn has freed what that graph kept.",
                name=called,
                node=found.name.held.tensor.grad_fn.name() if found.name.held.tensor.grad_fn else "?",
            ),
            once_each(marks) if found.earlier is None else marks[:1] + _others(marks),
            self._fix(found),
            tensors=[case.subject(names[0].held.tensor, "state", names[0].held.path)],
            confidence="high" if found.certain else "medium",
            useless=[not_retain()],
            apart="" if found.certain else say("the lines that made the freed nodes"),
            wants="" if found.certain or case.traced else say("Which lines made and used the freed value?"),
        )

    @staticmethod
    def _fix(found: Reentry) -> Fix:
        name = found.name
        assert name is not None
        loop, source = name.loop, name.held.frame.source
        text = say("Detach what is carried over, so that each turn has a graph of its own.")
        lines, variables = detaching([each for each in found.names if each.kind == "carried"])
        edits: tuple[Edit, ...] = ()
        if loop is not None and found.asking is not None and lines:
            statement = found.asking.statement
            here = name.held.frame is found.asking
            nested = here and statement is not None and source.parent(statement) is not loop
            if nested:
                edits = after(found.asking, lines)
            else:
                edits = at_start_of(source, loop, guarded(source, loop, lines, [each for _, each in variables]))
        code = source.code(*edits) if edits else "\n".join(lines) or f"{name.held.path} = {name.held.path}.detach()"
        return Fix(text, code, edits, "high" if edits and found.certain else "medium")

    @staticmethod
    def bad():
        import torch

        cell = torch.nn.LSTMCell(2, 3)
        state = (torch.zeros(4, 3), torch.zeros(4, 3))
        for _ in range(2):
            state = cell(torch.randn(4, 2), state)
            error = state[0].square().sum()
            error.backward()

    @staticmethod
    def good():
        import torch

        cell = torch.nn.LSTMCell(2, 3)
        state = (torch.zeros(4, 3), torch.zeros(4, 3))
        for _ in range(2):
            state = (state[0].detach(), state[1].detach())
            state = cell(torch.randn(4, 2), state)
            error = state[0].square().sum()
            error.backward()


def _others(marks: list) -> list:  # type: ignore[type-arg]
    """The lines beside the failing one, once each; the pass that freed is told although it is often the same line."""
    return once_each(marks[1:])
