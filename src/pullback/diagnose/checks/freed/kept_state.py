"""PB305: an attribute of an object that keeps a graph over several backward passes."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Reentry, carrying_methods, filled_parts
from pullback.diagnose.evidence.freed.flow import events
from pullback.diagnose.evidence.freed.names import Held, held_in
from pullback.diagnose.evidence.freed.report import (
    after,
    detached,
    earlier_mark,
    entry_marks,
    failing_mark,
    marked,
    not_retain,
    of_kind,
    once_each,
    renewed_marks,
)
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class KeptState(Cause):
    """An attribute of a module or another object holds a tensor with its graph, and the next pass goes through it.

    A memory, a running state or a cache that `forward` keeps in `self.state` carries the graph of the call that made it
    into the next call. The `backward()` in between has freed that graph.

    Keep the value without its history: `self.state = new.detach()`, or detach it after each backward pass. A cache of
    something that depends on parameters must be emptied after each step rather than detached: else it is stale.
    """

    code = "PB305"
    title = "An attribute of an object kept a tensor with its graph, which an earlier backward pass had freed."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "attribute")
        if found is None or found.name is None:
            return None
        held = found.name.held
        made, used = entry_marks(case, found, held.path)
        written = self._written(held) or renewed_marks(case, held, say("{name} keeps the graph here", name=held.path))
        marks = [
            failing_mark(case, found, say("this pass goes back through {name}", name=held.path)),
            *once_each([*made, *used, *written]),
            *earlier_mark(found, say("this pass freed the graph that {name} was part of", name=held.path)),
        ]
        return self.found(
            say(
                "{name} of a {kind} keeps a tensor together with its graph from one backward pass to the next. The "
                "earlier pass freed that graph, and the new value was computed from the old one.",
                name=held.path,
                kind=type(held.owner).__name__,
            ),
            marks,
            self._fix(case, found),
            tensors=[case.subject(held.tensor, "kept", held.path)],
            confidence="high" if found.certain else "medium",
            useless=[not_retain()],
        )

    @staticmethod
    def _written(held: Held) -> list[Mark]:
        targets = [
            (file, function, target)
            for file, function, path in carrying_methods(held)
            for kind, name, target in events(function.body)
            if kind != "read" and name == path
        ]
        for file, function, target in (targets or list(filled_parts(held)))[-1:]:
            source, name = source_of(file), f"{function.args.args[0].arg}.{held.attribute}"
            if (statement := source.statement(target)) is not None:
                return [marked(source, statement, say("{name} keeps the graph here", name=name), function.name)]
        return []

    @staticmethod
    def _fix(case: Case, found: Reentry) -> Fix:
        assert found.name is not None
        text = say("Keep the value without its graph: detach it after each backward pass, or where it is stored.")
        paths = {each.held.attribute: each for each in found.names if each.held.owner is not None}
        lines = []
        own = list(held_in([found.asking])) if found.asking is not None else []
        for name, each in paths.items():
            owner = each.held.owner
            near = next((one for one in own if one.owner is owner and one.attribute == name), None)
            value = vars(owner).get(name, getattr(owner, "_buffers", {}).get(name))
            if near is None:
                continue
            whole = near.path.rpartition(f".{name}")[0] + f".{name}"
            if line := detached(whole, value):
                lines.append(f"{whole} = {line}")
        if found.asking is None or not lines:
            name = f"self.{found.name.held.attribute}"
            return Fix(text, f"{name} = {name}.detach()")
        edits = after(found.asking, lines)
        return Fix(text, "\n".join(lines), edits, "high" if edits and found.certain else "medium")

    @staticmethod
    def bad():
        import torch

        class Average:
            def __init__(self) -> None:
                self.mean = torch.zeros(())

            def update(self, value: torch.Tensor) -> torch.Tensor:
                self.mean = 0.9 * self.mean + 0.1 * value
                return value - self.mean

        layer, average = torch.nn.Linear(3, 1), Average()
        for _ in range(2):
            average.update(layer(torch.randn(2, 3)).exp().mean()).backward()

    @staticmethod
    def good():
        import torch

        class Average:
            def __init__(self) -> None:
                self.mean = torch.zeros(())

            def update(self, value: torch.Tensor) -> torch.Tensor:
                self.mean = 0.9 * self.mean + 0.1 * value.detach()
                return value - self.mean

        layer, average = torch.nn.Linear(3, 1), Average()
        for _ in range(2):
            average.update(layer(torch.randn(2, 3)).exp().mean()).backward()
