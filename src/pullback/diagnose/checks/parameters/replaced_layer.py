"""PBA147: a layer that was replaced after the optimizer was made."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.evidence.training.loop import held, optimizer_name, user_sources
from pullback.diagnose.evidence.training.untrained import Left, Untrained
from pullback.diagnose.values import Fix, Mark, Subject
from pullback.graph.values import Place
from pullback.language import say

# So many steps of an optimizer are looked at.
STEPS = 3


@dataclass
class _Found:
    """An optimizer that holds parameters which no module has any more."""

    name: str
    step: Spot
    made: Spot | None
    sources: list[Source]
    old: list[Subject]
    new: dict[int, str]
    kind: str


class ReplacedLayer(Fault):
    """A layer of the model was replaced after the optimizer had been made: its parameters are in no optimizer.

    ``model.fc = nn.Linear(512, 10)`` puts new parameters into the model. The optimizer keeps the old ones, which the
    model does not use any more. The new layer gets gradients and is never changed; often the rest learns well enough to
    hide that. ``load_state_dict(assign=True)``, ``weight_norm`` and resizing an embedding make new parameters too.

    Make the optimizer after the model has its final form, or give it the new parameters:
    ``optimizer.add_param_group({"params": model.fc.parameters()})``. More epochs or a larger learning rate do not help.
    """

    code = "PBA147"
    title = "A layer was replaced after the optimizer was made: the optimizer has the old parameters, not the new ones."

    def __init__(self) -> None:
        self._untrained = Untrained()
        self._reached: set[int] = set()
        self._found: dict[int, _Found] = {}
        self._spot: Spot | None = None

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._reached.update(id(leaf) for leaf in backward.leaves)
        self._untrained.passes_now(audit, backward)
        self._spot = backward.spot

    def before_step(self, audit: Audit, step: Step) -> None:
        if not self._untrained.left or step.spot is None or self._untrained.looks > STEPS:
            return
        dead = [each for each in step.parameters if each.grad is None and id(each) not in self._reached]
        if not dead or any(id(each) in step.optimizer.state for each in dead):
            return
        known = {
            id(each): f"{name}.{path}"
            for name, module in reversed(held(audit, nn.Module))
            for path, each in module.named_parameters()
        }
        old = [each for each in dead if each.requires_grad and id(each) not in known]
        new = {
            key: known[key]
            for key, left in self._untrained.left.items()
            if key in known and self._is_parameter(left.tensor())
        }
        if not old or not new:
            return
        made = audit.made.get(step.optimizer)
        frames = list(audit.frames())
        self._found[id(step.optimizer)] = _Found(
            optimizer_name(audit, step.optimizer),
            step.spot,
            made,
            user_sources([made, *frames, self._spot]),
            [Subject.of(each, say("old"), "parameter") for each in old],
            new,
            type(step.optimizer).__name__,
        )

    def at_end(self, audit: Audit) -> None:
        if audit.reported("PBA133"):  # all of the model was replaced
            return
        left = {id(each): key for key, each in self._untrained.left.items()}
        now = {left[id(each)]: each for each in self._untrained.now(audit)}
        for found in self._found.values():
            names = {key: name for key, name in found.new.items() if key in now}
            if names:
                self._say(audit, found, names, now)

    def _say(self, audit: Audit, found: _Found, names: dict[int, str], now: dict[int, Left]) -> None:
        marks: list[Mark] = []
        paths = dict.fromkeys(name.rpartition(".")[0] for name in sorted(names.values()))
        lines = {path: replaced_at(found.sources, path, found.made) for path in paths}
        if any(lines.values()):  # what was not replaced is left out of the optimizer on purpose
            names = {key: name for key, name in names.items() if lines[name.rpartition(".")[0]]}
        new = [replace(now[key].subject, name=name) for key, name in names.items()]
        path = next((path for path in paths if lines[path]), next(iter(paths)))
        if (line := lines[path]) is not None:
            source, node = line
            place = Place(source.file, node.lineno, "")
            marks.append(Mark.at(place, say("new parameters from here"), source.span(node)))
        if found.made is not None:
            marks.append(found.made.mark(say("the optimizer was made of the parameters of then")))
        marks.append(found.step.mark(say("steps parameters that have no gradient")))
        audit.report(
            self.found(
                say(
                    "{names} get gradients, but are in no optimizer; {optimizer} has {count} parameters that belong to "
                    "no module any more and never get a gradient: it was made before the layer was replaced.",
                    names=", ".join(sorted(names.values())[:4]),
                    optimizer=found.name,
                    count=len(found.old),
                ),
                marks,
                Fix(
                    say("Make the optimizer after the replacement, or add the new parameters to it."),
                    f'{found.name}.add_param_group({{"params": {path}.parameters()}})' if path else "",
                ),
                tensors=[*new[:3], *found.old[:2]],
            )
        )

    @staticmethod
    def _is_parameter(tensor: Tensor | None) -> bool:
        return isinstance(tensor, nn.Parameter)

    @staticmethod
    def bad():
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[2] = torch.nn.Linear(8, 1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        model[2] = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()


def replaced_at(sources: list[Source], path: str, made: Spot | None) -> tuple[Source, ast.stmt] | None:
    """The statement that put a new module in its place: the last to assign to such a name outside of ``__init__``."""
    parts = [each for each in path.replace("[", ".").replace("]", "").split(".") if each]
    for last in reversed(parts[1:]):  # the layer itself, or a module around it
        found: list[tuple[Source, ast.stmt]] = []
        for source in sources:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Assign) and any(_is_named(each, last) for each in node.targets):
                    scope = source.scope(node)
                    if not (isinstance(scope, ast.FunctionDef) and scope.name == "__init__"):
                        found.append((source, node))
                elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _sets(node.value, last):
                    found.append((source, node))
        behind = [
            (source, node) for source, node in found
            if made is None or source.file != made.file or node.lineno > made.line or source.scope(node) != made.scope
        ]  # fmt: skip
        if behind or found:
            return (behind or found)[-1]
    return None


def _is_named(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr == name
    if isinstance(target, ast.Subscript):
        index = target.slice
        if isinstance(index, ast.Constant):
            return str(index.value) == name
        return isinstance(index, ast.UnaryOp) and name.isdigit()  # [-1]
    return False


def _sets(call: ast.Call, name: str) -> bool:
    """Whether it is ``setattr(model, "fc", ...)`` or ``model.add_module("fc", ...)``."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return called in {"setattr", "add_module", "register_module", "set_submodule"} and any(
        isinstance(each, ast.Constant) and each.value == name for each in call.args
    )
