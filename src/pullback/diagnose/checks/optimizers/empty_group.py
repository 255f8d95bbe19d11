"""PBA149: a group of an optimizer without parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import Scope, Source
from pullback.diagnose.evidence.training.loop import assignments, held, optimizer_name
from pullback.diagnose.evidence.training.untrained import Untrained
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

ONCE = frozenset({"parameters", "named_parameters", "filter", "map", "zip", "chain", "buffers"})


@dataclass
class _Empty:
    """An optimizer with an empty group; ``beside`` are the parameters of the models that it trains in part, by id."""

    name: str
    number: int
    spot: Spot
    beside: set[int]


class EmptyGroup(Fault):
    """A group of the optimizer holds no parameter: nothing is trained by it.

    An optimizer whose only group is empty raises; one with several groups does not. ``net.parameters()``, ``filter``
    and ``(p for ...)`` are generators, which can be gone through once: whoever counts, prints or clips by them first,
    or gives the same one to two groups, leaves nothing for the second. A condition on names that fits none, such as
    ``"layer4" in name`` after renaming, does the same.

    Make a list, ``params = list(net.parameters())``, and write ``assert params`` where a choice may come out empty. A
    larger learning rate for the group has no effect: there is nothing that it applies to.
    """

    code = "PBA149"
    title = "A parameter group of the optimizer is empty, although parameters are left without an optimizer."

    def __init__(self) -> None:
        self._untrained = Untrained()
        self._empty: dict[tuple[int, int], _Empty] = {}

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._untrained.passes_now(audit, backward)

    def before_step(self, audit: Audit, step: Step) -> None:
        if step.number:
            return
        for number, group in enumerate(step.optimizer.param_groups):
            made = self._made(audit, step.optimizer) or step.spot
            if not group["params"] and made is not None:
                name = optimizer_name(audit, step.optimizer)
                self._empty[id(step.optimizer), number] = _Empty(name, number, made, _beside(audit, step))

    @staticmethod
    def _made(audit: Audit, optimizer: Optimizer) -> Spot | None:
        return audit.made.get(optimizer)

    def at_end(self, audit: Audit) -> None:
        if not self._empty:
            return
        untrained = self._untrained.now(audit)
        for empty in self._empty.values():
            # the parameters of another model, such as one that a loss is computed by, were not meant
            left = [each.subject for each in untrained if (leaf := each.tensor()) is None or id(leaf) in empty.beside]
            value = _written(empty)
            made = _generator(empty.spot, value)
            if not left and made is None:
                continue  # what it would hold is in another group
            marks = [self._mark(empty.spot, value)]
            edits: tuple[Edit, ...] = ()
            source = empty.spot.source
            if made is not None:
                place = Place(source.file, made.lineno, empty.spot.place.function)
                marks.append(Mark.at(place, say("a generator, which can be gone through once"), source.span(made)))
                if made.value is not None:
                    edits = (source.replaced(made.value, f"list({_bare(source.text(made.value))})"),)
            names = ", ".join(each.name for each in left[:4])
            audit.report(
                self.found(
                    say(
                        "Group {number} of {optimizer} has no parameters. These get gradients, but are in no "
                        "optimizer: {names}.",
                        number=empty.number,
                        optimizer=empty.name,
                        names=names,
                    )
                    if left
                    else say(
                        "Group {number} of {optimizer} has no parameters: its generator had been gone through before.",
                        number=empty.number,
                        optimizer=empty.name,
                    ),
                    marks,
                    Fix(
                        say("Give the group a list of the parameters that it is to train."),
                        source.code(*edits) or "params = list(net.parameters())",
                        edits,
                        "medium",
                    ),
                    tensors=left[:4],
                    confidence="high" if made is not None else "medium",
                )
            )

    @staticmethod
    def _mark(spot: Spot, value: ast.expr | None) -> Mark:
        if value is None:
            return spot.mark(say("a group of it is empty"))
        place = Place(spot.file, value.lineno, spot.place.function)
        return Mark.at(place, say("nothing is in this group"), spot.source.span(value))

    @staticmethod
    def bad():
        import torch

        body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        params = head.parameters()
        count = sum(p.numel() for p in params)
        optimizer = torch.optim.SGD([{"params": body.parameters()}, {"params": params, "lr": 0.5}], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            head(body(torch.randn(6, 4))).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        params = list(head.parameters())
        count = sum(p.numel() for p in params)
        optimizer = torch.optim.SGD([{"params": body.parameters()}, {"params": params, "lr": 0.5}], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            head(body(torch.randn(6, 4))).square().mean().backward()
            optimizer.step()


def _written(empty: _Empty) -> ast.expr | None:
    """The parameters of the group as they are written."""
    source, scope = empty.spot.source, empty.spot.scope
    node: ast.AST | None = empty.spot.node or empty.spot.statement
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if isinstance(given, ast.Name):
        made = [each for each in assignments(source, scope, given.id) if each.lineno <= empty.spot.line]
        given = made[-1].value if made else None
    if not isinstance(given, ast.List | ast.Tuple) or empty.number >= len(given.elts):
        return None
    group = given.elts[empty.number]
    if isinstance(group, ast.Dict):
        for key, value in zip(group.keys, group.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "params":
                return value
    if isinstance(group, ast.Call):
        return next((each.value for each in group.keywords if each.arg == "params"), None)
    return None


def _generator(spot: Spot, value: ast.expr | None) -> ast.Assign | ast.AnnAssign | None:
    """Where a name was made a generator that something else has gone through before."""
    if not isinstance(value, ast.Name):
        return None
    source = spot.source
    for scope in dict.fromkeys((spot.scope, source.tree)):
        made = [each for each in assignments(source, scope, value.id) if each.lineno < value.lineno]
        last = made[-1] if made else None
        if last is None or isinstance(last, ast.AugAssign) or last.value is None:
            continue
        if isinstance(last.value, ast.GeneratorExp) or _called(last.value) in ONCE:
            return last if any(_uses(source, scope, value, last)) else None
        return None
    return None


def _uses(source: Source, scope: Scope, value: ast.Name, made: ast.stmt) -> Iterator[bool]:
    for each in ast.walk(scope):
        if isinstance(each, ast.Name) and each.id == value.id and isinstance(each.ctx, ast.Load) and each is not value:
            yield (made.lineno, 0) < (each.lineno, each.col_offset) < (value.lineno, value.col_offset)


def _called(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _beside(audit: Audit, step: Step) -> set[int]:
    mine = {id(each) for each in step.parameters}
    models = [{id(each) for each in module.parameters()} for _, module in held(audit, nn.Module)]
    return {each for model in models if model & mine for each in model}
