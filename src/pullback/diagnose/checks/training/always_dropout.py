"""PBA119: dropout that is on in evaluation mode."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import nn

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say


class AlwaysDropout(Fault):
    """``F.dropout(x)`` was called without ``training=self.training``: it drops units in evaluation mode too.

    The function does not know the mode of the module that calls it; its default is ``training=True``. After
    ``model.eval()`` the outputs are still random, and validation and predictions are worse than the model is.

    Write ``F.dropout(x, p, training=self.training)``, or keep an ``nn.Dropout`` in the module. For Monte Carlo dropout,
    which wants this, say ``training=True``: then nothing is reported. ``torch.no_grad()`` does not turn dropout off.
    """

    code = "PBA119"
    title = "F.dropout() drops units in a module that is in evaluation mode: training=self.training is missing."
    hears = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        spot = call.spot
        node = spot.node if spot is not None else None
        if spot is None or not isinstance(node, ast.Call) or kwargs.get("training") is False:
            return
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called != call.name or len(node.args) > 2 or any(each.arg in {"training", None} for each in node.keywords):
            return
        frames = audit.frames()
        owner = frames[0].local.get("self") if frames and frames[0].code is spot.code else None
        if not isinstance(owner, nn.Module) or owner.training:
            return
        if isinstance(node.func, ast.Attribute) and isinstance(frames[0].evaluated(node.func), nn.Module):
            return  # a layer of its own, with a mode of its own
        text = spot.source.text(node)
        code = f"{text[:-1].rstrip().removesuffix(',')}, training=self.training)"
        edits = (spot.source.replaced(node, code),)
        audit.report(
            self.found(
                say(
                    "This {kind} is in evaluation mode, but {text} drops units all the same: the function's default is "
                    "training=True.",
                    kind=type(owner).__name__,
                    text=" ".join(text.split()),
                ),
                [spot.mark(say("drops units in evaluation mode"))],
                Fix(say("Give it the mode of the module."), spot.source.code(*edits), edits, "high"),
                useless=[say("torch.no_grad(): it turns the recording off, not dropout")],
            )
        )

    @staticmethod
    def bad():
        import torch
        import torch.nn.functional as F

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.layer(F.dropout(x, 0.5))

        net = Net().eval()
        with torch.no_grad():
            print(net(torch.randn(3, 4)))

    @staticmethod
    def good():
        import torch
        import torch.nn.functional as F

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.layer(F.dropout(x, 0.5, training=self.training))

        net = Net().eval()
        with torch.no_grad():
            print(net(torch.randn(3, 4)))
