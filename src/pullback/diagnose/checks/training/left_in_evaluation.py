"""PBA118: training goes on in evaluation mode."""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.evidence.training.loop import Key, held, key_of, loop_around, user_sources
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class LeftInEvaluation(Fault):
    """A model was trained in training mode at first, and then in evaluation mode, at the same line.

    ``model.eval()`` before a validation stays in force until ``model.train()`` is called. From the second epoch on,
    dropout is off and batch norm uses its running statistics, and no longer updates them, in training too. The loss
    falls faster, and the model overfits.

    Call ``model.train()`` at the start of each epoch, not once before the loop. ``torch.no_grad()`` around the
    validation is right, but does not change the mode. Freezing only the batch norm layers is not reported.
    """

    code = "PBA118"
    title = "Training goes on in evaluation mode: eval() was called, and train() was not called again."

    def __init__(self) -> None:
        self._modes: WeakKeyDictionary[nn.Module, dict[Key, list[bool]]] = WeakKeyDictionary()
        self._found: dict[Key, tuple[Spot, str, list[Source], tuple[str, ...]]] = {}
        self._waiting: dict[Key, WeakSet[nn.Module]] = {}  # passes that no step has followed

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        spot = backward.spot
        if spot is None or not backward.record.accumulates:
            return
        reached: set[int] | None = None
        for name, module in held(audit, nn.Module):
            modes = self._modes.setdefault(module, {}).setdefault(key_of(spot), [])
            if modes and modes[-1] == module.training:
                continue
            reached = {id(leaf) for leaf in backward.leaves} if reached is None else reached
            if len(modes) < 4 and any(id(each) in reached for each in module.parameters()):
                modes.append(module.training)
                self._changed(audit, spot, name, module, modes)

    def _changed(self, audit: Audit, spot: Spot, name: str, module: nn.Module, modes: list[bool]) -> None:
        kinds = {type(part).__name__ for part in module.modules() if isinstance(part, _BatchNorm | _DropoutNd)}
        if modes == [True, False] and kinds:
            self._waiting[key_of(spot)] = WeakSet([module])
            self._found[key_of(spot)] = (spot, name, user_sources([spot, *audit.frames()]), tuple(sorted(kinds)))
        else:  # it goes to and fro, as is meant
            self._found.pop(key_of(spot), None)

    def before_step(self, audit: Audit, step: Step) -> None:
        if self._waiting:  # a pass in evaluation mode that no step uses, of an attack say, trains nothing
            own = {id(each) for each in step.parameters}
            for key, modules in list(self._waiting.items()):
                if any(id(each) in own for module in modules for each in module.parameters()):
                    del self._waiting[key]

    def at_end(self, audit: Audit) -> None:
        for key, (spot, name, sources, kinds) in self._found.items():
            if key in self._waiting:
                continue
            own = name.rpartition(".")[2]
            calls = [(source, call) for source in sources for call in _evals(source, own)]
            marks = [
                Mark.at(Place(source.file, call.lineno, ""), say("evaluation mode from here"), source.span(call))
                for source, call in calls[:1]
            ]
            statement = spot.statement
            loop = loop_around(spot.source, statement) if statement is not None else None
            edits: tuple[Edit, ...] = ()
            if loop is not None and loop.body[0].lineno > loop.lineno and name.isidentifier():
                edits = (spot.source.inserted_before(loop.body[0], f"{name}.train()"),)
            audit.report(
                self.found(
                    say(
                        "{name} was in training mode at the first passes of this line, and is in evaluation mode now: "
                        "its {kinds} layers do not do what they do in training.",
                        name=name,
                        kinds=", ".join(kinds),
                    ),
                    [*marks, spot.mark(say("trained in evaluation mode here"))],
                    Fix(
                        say("Call train() before each round of training."),
                        f"{name}.train()    # at the start of each epoch",
                        edits,
                        "medium",
                    ),
                    confidence="medium",
                )
            )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.train()
        for _ in range(3):
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.randn(6, 4)).square().mean().backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                net(torch.randn(6, 4))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net.train()
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.randn(6, 4)).square().mean().backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                net(torch.randn(6, 4))


def _evals(source: Source, name: str) -> list[ast.Call]:
    """The calls of ``eval()`` of the module in a file; those of any, if there is none."""
    found = [
        node for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords)
        and node.func.attr == "eval"
    ]  # fmt: skip
    mine = [each for each in found if source.text(each.func).removesuffix(".eval").rpartition(".")[2] == name]
    return mine or found
