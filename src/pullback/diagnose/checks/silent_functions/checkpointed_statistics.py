"""PBA508: a batch norm inside of a checkpoint."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.spots import spot_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say

DEPTH = 60
MOST = 100


class CheckpointedStatistics(Fault):
    """A batch norm inside of a checkpoint updates its running statistics twice in each step.

    The backward of a checkpoint runs the function a second time, and the batch norm in it counts the batch again: the
    statistics move twice as far as ``momentum`` says. The gradients are right; evaluation differs.

    Leave the batch norm out of the checkpoint, or give it the momentum that comes to the same in two updates:
    ``1 - (1 - momentum) ** 0.5``.
    """

    code = "PBA508"
    title = "A batch norm inside of a checkpoint updates its running statistics twice in each step."
    hears = frozenset({"batch_norm"})

    def __init__(self) -> None:
        self._seen: list[tuple[Spot, Spot | None, str]] = []

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = dict(
            zip(("input", "running_mean", "running_var", "weight", "bias", "training", "momentum"), args, strict=False)
        )
        given.update(kwargs)
        if (
            call.spot is None
            or not given.get("training")
            or given.get("running_mean") is None
            or not given.get("momentum")
        ):
            return
        if torch._C._current_graph_task_id() != -1 or len(self._seen) >= MOST:
            return
        frame = sys._getframe(1)
        for _ in range(DEPTH):
            if frame.f_code.co_filename.endswith("utils/checkpoint.py") and frame.f_code.co_name in {
                "checkpoint",
                "forward",
            }:
                name = audit.name_of(given["running_mean"], "bn.running_mean").rpartition(".")[0]
                self._seen.append((call.spot, spot_of(frame), re.sub(r"\.(\d+)", r"[\1]", name)))
                return
            if frame.f_back is None:
                return
            frame = frame.f_back

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        for spot, asked, name in self._seen:
            marks = [asked.mark(say("checkpointed here"))] if asked is not None else []
            if asked is None or asked.line != spot.line:
                marks.append(spot.mark(say("the batch norm runs here, and again in the backward")))
            audit.report(
                self.found(
                    say(
                        "A batch norm in training mode runs inside of this checkpoint. The recomputation in the "
                        "backward counts each batch a second time: num_batches_tracked and the running statistics move "
                        "twice a step."
                    ),
                    marks,
                    Fix(
                        say("Leave the batch norm out of the checkpoint, or adapt its momentum."),
                        f"{name}.momentum = 1 - (1 - {name}.momentum) ** 0.5",
                    ),
                    confidence="medium",
                )
            )
        self._seen.clear()

    @staticmethod
    def bad():
        import torch
        import torch.utils.checkpoint

        block = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
        x = torch.randn(4, 1, 5, 5, requires_grad=True)
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).mean().backward()

    @staticmethod
    def good():
        import torch
        import torch.utils.checkpoint

        conv, norm = torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)
        x = torch.randn(4, 1, 5, 5, requires_grad=True)
        norm(torch.utils.checkpoint.checkpoint(conv, x, use_reentrant=False)).square().mean().backward()
