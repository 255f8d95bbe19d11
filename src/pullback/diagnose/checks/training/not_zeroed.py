"""PBA101: gradients of earlier steps are still there when new ones are added."""

from __future__ import annotations

import ast
from typing import Any
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import after, before, in_optimizers, key_of, loop_around, optimizer_name
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NotZeroed(Fault):
    """A backward pass added to gradients that had been used already.

    ``backward()`` adds to ``.grad``. If nothing clears it between one step and the next, each step uses the sum of all
    gradients since the start: the step length grows, and old gradients pull in directions that are no longer right.

    Write ``optimizer.zero_grad()`` once per step, before ``backward()`` (or just after ``step()``); without an
    optimizer ``w.grad = None``. Several passes before *one* step are deliberate accumulation: that is not reported.
    A smaller learning rate hides this fault but does not cure it.
    """

    code = "PBA101"
    title = "Gradients were added to those of an earlier step, which nothing had cleared."

    def __init__(self) -> None:
        # What a step has used: the parameter, its gradient, and its version then.
        self._used: dict[int, tuple[ref[Tensor], ref[Tensor], int]] = {}
        self._tainted: dict[int, tuple[ref[Tensor], Spot]] = {}
        # Of leaves that no optimizer has: their versions and those of their gradients after the latest pass.
        self._last: dict[int, tuple[ref[Tensor], ref[Tensor], int, int]] = {}
        self._repeats: dict[tuple[Any, int], int] = {}

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if not backward.record.accumulates or backward.spot is None:
            return
        if not backward.had_grad and not self._tainted:
            return
        trained: set[int] | None = None
        for leaf in backward.leaves:
            key = id(leaf)
            if key not in backward.had_grad or leaf.grad is None:
                self._tainted.pop(key, None)
                continue
            used = self._used.get(key)
            if used is not None and used[0]() is leaf and used[1]() is leaf.grad and used[2] == leaf.grad._version:
                if bool(leaf.grad.any()):
                    self._tainted[key] = ref(leaf), backward.spot
            elif key in self._tainted and not bool(leaf.grad.any()):
                del self._tainted[key]
            last = self._last.get(key)
            if last is None or last[0]() is not leaf or last[1]() is not leaf.grad or last[3] != leaf.grad._version:
                continue
            trained = in_optimizers(audit) if trained is None else trained
            if key not in trained and not audit.reported(self.code):
                self._without_optimizer(audit, backward.spot, leaf, moved=leaf._version != last[2])

    def _without_optimizer(self, audit: Audit, spot: Spot, leaf: Tensor, *, moved: bool) -> None:
        """A leaf that no optimizer has still has its gradient: was that used, in each turn of the loop?"""
        times = self._repeats[key_of(spot), id(leaf)] = self._repeats.get((key_of(spot), id(leaf)), 0) + 1
        if times < 2 or leaf.grad is None or not bool(leaf.grad.any()):
            return
        if not moved and not self._is_read(audit, spot, leaf):
            return
        name = audit.name_of(leaf, "w")
        edits = before(spot, f"{name}.grad = None") if name.isidentifier() else ()
        audit.report(
            self.found(
                say(
                    "{name}.grad is used in every turn of the loop, but nothing clears it: backward() adds to it, "
                    "so in "
                    "turn {times} it is the sum of {times} gradients.",
                    name=name,
                    times=times + 1,
                ),
                [spot.mark(say("this adds to {name}.grad", name=name))],
                Fix(
                    say("Clear the gradient before each pass."),
                    f"{name}.grad = None",
                    edits,
                    "high" if edits else "medium",
                ),
                tensors=[audit.subject(leaf, "parameter", name)],
            )
        )

    @staticmethod
    def _is_read(audit: Audit, spot: Spot, leaf: Tensor) -> bool:
        """Whether the loop around a pass reads the gradient of a leaf."""
        statement = spot.statement
        loop = loop_around(spot.source, statement) if statement is not None else None
        frame = next((each for each in audit.frames() if each.code is spot.code), None)
        if loop is None or frame is None:
            return False
        for node in ast.walk(loop):
            if not isinstance(node, ast.Attribute) or node.attr != "grad" or not isinstance(node.ctx, ast.Load):
                continue
            if frame.evaluated(node.value) is leaf and not isinstance(spot.source.parent(node), ast.Compare):
                return True
        return False

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.record.accumulates:
            for leaf in backward.leaves:
                if leaf.grad is not None:
                    self._last[id(leaf)] = ref(leaf), ref(leaf.grad), leaf._version, leaf.grad._version

    def before_step(self, audit: Audit, step: Step) -> None:
        if not self._tainted or step.spot is None:
            return
        for parameter in step.parameters:
            found = self._tainted.pop(id(parameter), None)
            if found is not None and found[0]() is parameter and parameter.grad is not None:
                self._used.pop(id(parameter), None)
                if not audit.reported(self.code):
                    audit.report(self._said(audit, step, parameter, found[1]))

    def _said(self, audit: Audit, step: Step, parameter: Tensor, spot: Spot) -> Diagnosis:
        name = optimizer_name(audit, step.optimizer)
        assert step.spot is not None
        edits = after(step.spot, f"{name}.zero_grad()") if name.replace(".", "_").isidentifier() else ()
        return self.found(
            say(
                "{optimizer}.step() had used the gradients already when backward() added new ones to them: since then "
                "no zero_grad() has run, and this step uses the sum of both.",
                optimizer=name,
            ),
            [spot.mark(say("adds to the gradients of the step before")), step.spot.mark(say("uses the sum"))],
            Fix(
                say("Clear the gradients once for each step."),
                f"{name}.step()\n{name}.zero_grad()",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[audit.subject(parameter, "parameter")],
            useless=[say("a smaller learning rate: the sum grows on")],
        )

    def after_step(self, audit: Audit, step: Step) -> None:
        for parameter in step.parameters:
            if parameter.grad is not None:
                self._used[id(parameter)] = ref(parameter), ref(parameter.grad), parameter.grad._version

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            loss = (net(torch.randn(8, 4)) - 1).square().mean()
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            loss = (net(torch.randn(8, 4)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
