"""PBA507: other random numbers in the recomputation of a checkpoint."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.transforms import keyword_of, without_keyword
from pullback.diagnose.recorders.spots import spot_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix
from pullback.graph.frames import variables
from pullback.language import say

RANDOM = frozenset({
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "bernoulli", "rand", "randn",
    "rand_like", "randn_like", "randint", "randperm", "multinomial", "normal", "poisson", "bernoulli_", "uniform_",
    "normal_", "rrelu", "gumbel_softmax", "scaled_dot_product_attention",
})  # fmt: skip
DEPTH = 60


class CheckpointedDropout(Fault):
    """A checkpoint with ``preserve_rng_state=False`` draws other random numbers when it computes the forward again.

    The backward of a checkpoint runs the function a second time. With another dropout mask than in the forward, the
    gradient belongs to a different network than the loss.

    Leave ``preserve_rng_state`` at its default, True. Turning it off saves little and is right only for functions
    without random numbers.
    """

    code = "PBA507"
    title = "A checkpoint draws other random numbers in its recomputation than in its forward."
    hears = RANDOM

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or torch._C._current_graph_task_id() != -1 or _is_off(call.name, args, kwargs):
            return
        frame, caller = _checkpoint(sys._getframe(1))
        if frame is None or variables(frame).get("preserve_rng_state") is not False:
            return
        asked = spot_of(caller)
        edits: tuple[Edit, ...] = ()
        if asked is not None and isinstance(asked.node, ast.Call) and keyword_of(asked.node, "preserve_rng_state"):
            edits = without_keyword(asked, asked.node, "preserve_rng_state")
        marks = [asked.mark(say("preserve_rng_state=False is said here"))] if asked is not None else []
        marks.append(call.spot.mark(say("random numbers are drawn here, and again in the backward")))
        audit.report(
            self.found(
                say(
                    "{operation} runs inside of a checkpoint with preserve_rng_state=False. The recomputation in the "
                    "backward draws other numbers: the gradient does not belong to the forward that gave the loss.",
                    operation=call.name,
                ),
                marks,
                Fix(
                    say("Leave preserve_rng_state at its default."),
                    asked.source.code(*edits).strip() if asked is not None and edits else "preserve_rng_state=True",
                    edits,
                    "high" if edits else "medium",
                ),
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch
        import torch.utils.checkpoint

        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
        x = torch.randn(2, 4, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()

    @staticmethod
    def good():
        import torch
        import torch.utils.checkpoint

        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
        x = torch.randn(2, 4, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3)).eval()
        y = torch.utils.checkpoint.checkpoint(head, y, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()


def _is_off(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws nothing: dropout in evaluation, attention without dropout."""
    if name == "scaled_dot_product_attention":
        chance = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        return not chance
    if "dropout" not in name:
        return False
    chance = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return not chance or not training


def _checkpoint(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """The frame of torch's checkpoint that runs its function now, if any does, and one that its caller is behind."""
    for _ in range(DEPTH):
        if frame is None:
            return None, None
        code = frame.f_code
        if code.co_filename.endswith("utils/checkpoint.py") and "preserve_rng_state" in code.co_varnames:
            return frame, frame
        if code.co_filename.endswith("utils/checkpoint.py") and code.co_name == "checkpoint":
            generator = variables(frame).get("gen")
            return getattr(generator, "gi_frame", None), frame
        frame = frame.f_back
    return None, None
