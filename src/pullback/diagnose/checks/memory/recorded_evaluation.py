"""PBA164: an evaluation that records graphs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.recorders.spots import spot_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix
from pullback.graph.frames import variables
from pullback.language import say

MODULE_CALL = nn.Module._call_impl.__code__
TIMES = 3


@dataclass
class _Line:
    """A line that calls a module in evaluation mode."""

    spot: Spot
    count: int
    numbers: list[int]
    looked: bool = False
    evaluating: bool = False


class RecordedEvaluation(Fault):
    """A model in evaluation mode was run several times with grad mode on, and no pass ever used the graphs.

    ``model.eval()`` changes dropout and batch normalization; it does not switch off recording. Each output then holds a
    graph with all the saved tensors: evaluation takes more memory and time, and the outputs cannot be kept cheaply.

    Put the evaluation into ``with torch.no_grad():`` (or ``torch.inference_mode():``). ``requires_grad_(False)`` on the
    parameters has that effect too, but has to be taken back; ``detach()`` on the output only frees the graph after it
    was recorded.
    """

    code = "PBA164"
    title = "A model in evaluation mode recorded graphs that no backward pass used."
    hears = frozenset(
        {
            "linear",
            "conv1d",
            "conv2d",
            "conv3d",
            "embedding",
            "layer_norm",
            "batch_norm",
            "conv_transpose2d",
        }
    )

    def __init__(self) -> None:
        self._lines: dict[Key, _Line] = {}
        self._late: list[_Line] = []

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or not call.grad or not isinstance(result, Tensor) or result.grad_fn is None:
            return
        line = self._lines.get(key_of(call.spot))
        if line is None:
            if len(self._lines) > 500:
                return
            line = self._lines[key_of(call.spot)] = _Line(call.spot, 0, [])
        line.count += 1
        if line.looked and not line.evaluating:
            return
        if not line.looked:
            line.looked, found = True, _outermost()
            line.evaluating = found is not None and not found[0].training
            if found is not None and found[1] is not None:
                line.spot = found[1]
        if len(line.numbers) < 100:
            line.numbers.append(result.grad_fn._sequence_nr())

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        waiting = [line for line in self._lines.values() if line.evaluating]
        if waiting:
            used = {node._sequence_nr() for node in backward.nodes}
            for line in waiting:
                if len(line.numbers) >= TIMES and not used.intersection(line.numbers):
                    self._late.append(line)
        self._lines.clear()

    def at_end(self, audit: Audit) -> None:
        for line in (*self._late, *self._lines.values()):
            if not line.evaluating or len(line.numbers) < TIMES or audit.crashed or audit.reported(self.code):
                continue
            edits = self._edits(line.spot)
            audit.report(
                self.found(
                    say(
                        "The model is in evaluation mode here, but each call records a graph, and no backward pass "
                        "used any of them: eval() does not switch off recording."
                    ),
                    [line.spot.mark(say("records a graph each time"))],
                    Fix(
                        say("Evaluate under no_grad()."),
                        "with torch.no_grad():\n    output = model(x)",
                        edits,
                        "high" if edits else "medium",
                    ),
                    useless=[say("model.eval() once more: it is about dropout and batch normalization only")],
                    confidence="medium",
                )
            )

    @staticmethod
    def _edits(spot: Spot) -> tuple[Edit, ...]:
        statement = spot.statement
        if statement is None or statement.lineno != statement.end_lineno:
            return ()
        parent = spot.source.parent(statement)
        if getattr(parent, "lineno", 0) == statement.lineno:
            return ()
        return (spot.source.wrapped(statement, "with torch.no_grad():"),)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
        net.eval()
        right = 0
        for _ in range(6):
            output = net(torch.randn(8, 4))
            right += (output > 0).sum().item()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
        net.eval()
        right = 0
        with torch.no_grad():
            for _ in range(6):
                output = net(torch.randn(8, 4))
                right += (output > 0).sum().item()


def _outermost() -> tuple[nn.Module, Spot | None] | None:
    """The outermost module that is being called now, and the line of the user's that calls it."""
    here: FrameType | None = sys._getframe(1)
    last: FrameType | None = None
    while here is not None:
        if here.f_code is MODULE_CALL:
            last = here
        here = here.f_back
    module: Any = variables(last).get("self") if last is not None else None
    if last is None or not issubclass(type(module), nn.Module):
        return None
    return module, spot_of(last.f_back)
