"""PBA130: a state that was to be kept and is the module's own."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import calls_named
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class LoadedItself(Fault):
    """A state dict was loaded into the module that it came from, and all its tensors are the module's own.

    ``state_dict()`` copies nothing: its tensors share their memory with the parameters, and change with each step of
    the optimizer. What was to be the best state so far is always the latest one, and loading it changes nothing. The
    same happens if a "target" network is only another name of the network that it is updated from.

    Keep a copy: ``best = copy.deepcopy(net.state_dict())``, or save it to a file; make a target network with
    ``copy.deepcopy(net)``. ``dict(net.state_dict())`` and ``net.state_dict().copy()`` copy the dictionary only.
    """

    code = "PBA130"
    title = "A state dict was loaded into its own module: it had not been copied, so nothing is restored."

    def before_load(self, audit: Audit, module: nn.Module, state: Any, spot: Spot) -> None:
        given = _tensors(state)
        own = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
        if given and all(name in own and _same(each, own[name]) for name, each in given.items()):
            audit.report(self._finding(spot, len(given)))

    def _finding(self, spot: Spot, count: int) -> Diagnosis:
        call, source = spot.node, spot.source
        known = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and bool(call.args)
        module, state = (source.text(call.func.value), call.args[0]) if known else ("net", None)  # type: ignore[union-attr]
        text = source.text(state) if state is not None else say("this state")
        marks = [spot.mark(say("this changes nothing"))]
        if isinstance(state, ast.Call) and isinstance(state.func, ast.Attribute):  # two names of one module
            fix = Fix(say("Make a module of its own."), f"{module} = copy.deepcopy({source.text(state.func.value)})")
        else:
            taken = [each for each in calls_named(source.tree, "state_dict") if _name(state) in _statement(spot, each)]
            what = say("not a copy")
            marks += [Mark.at(Place(source.file, each.lineno, ""), what, source.span(each)) for each in taken[:2]]
            of = source.text(taken[0]) if taken else f"{module}.state_dict()"
            fix = Fix(say("Copy the state when it is taken."), f"copy.deepcopy({of})")
        return self.found(
            say(
                "All {count} tensors of {state} are those of {module} itself: loading them has no effect.",
                count=count,
                state=text,
                module=module,
            ),
            marks,
            fix,
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        best, kept = float("inf"), None
        for _ in range(5):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < best:
                best, kept = loss.item(), net.state_dict()
        net.load_state_dict(kept)

    @staticmethod
    def good():
        import copy

        import torch

        net = torch.nn.Linear(4, 1)
        target = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        best, kept = float("inf"), None
        for _ in range(5):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.load_state_dict(net.state_dict())
            if loss.item() < best:
                best, kept = loss.item(), copy.deepcopy(net.state_dict())
        net.load_state_dict(kept)


def _tensors(state: Any) -> dict[str, Tensor]:
    """What a state dict holds, without what is empty."""
    pairs = state.items() if isinstance(state, Mapping) else ()
    return {name: each for name, each in pairs if isinstance(each, Tensor) and each.numel()}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.device == other.device and one.data_ptr() == other.data_ptr()


def _name(node: ast.expr | None) -> str:
    """The last part of a name, which is the same where it was assigned: ``best`` of ``self.best``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "\0")


def _statement(spot: Spot, node: ast.AST) -> str:
    statement = spot.source.statement(node)
    return spot.source.text(statement) if statement is not None else ""
