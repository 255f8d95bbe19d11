"""PB909: an attribute of the wrapped model was asked of the wrapper."""

from __future__ import annotations

import ast
import re

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import attribute
from pullback.diagnose.evidence.functions.parallel import wrapped
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class HiddenAttribute(Cause):
    """An attribute or a method of the model was asked of the parallel model around it.

    ``DistributedDataParallel`` and ``DataParallel`` keep the model in ``.module``, and do not pass its
    attributes on. Write ``ddp.module.encode(x)`` for what has no gradient: saving, reading settings,
    evaluation. A *forward* pass by way of ``.module`` is not seen by DistributedDataParallel: gradients are
    then not averaged between processes, without an error. Whatever is trained has to go through ``ddp(...)``,
    which calls ``forward``; let ``forward`` choose the way by an argument.
    """

    code = "PB909"
    title = "An attribute of the model was asked of the parallel model around it."
    says = ("DistributedDataParallel' object has no attribute", "DataParallel' object has no attribute")
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        owner, name = getattr(case.error, "obj", None), getattr(case.error, "name", None)
        if not isinstance(owner, nn.DataParallel | DistributedDataParallel) or not isinstance(name, str):
            found = re.search(r"no attribute '(\w+)'", case.message)
            owner, name = wrapped(case), found[1] if found else ""
        model = getattr(owner, "module", None)
        if model is None or case.site is None or not (hasattr(type(model), name) or attribute(model, name) is not None):
            return None
        node = case.site.node
        node = node.func if isinstance(node, ast.Call) else node
        edits: tuple[Edit, ...] = ()
        if isinstance(node, ast.Attribute) and node.attr == name:
            edits = (case.site.source.replaced(node, f"{case.text(node.value)}.module.{name}"),)
        return self.found(
            say(
                "{name} belongs to {model}, which is in .module of the parallel model.",
                name=name,
                model=type(model).__name__,
            ),
            [case.mark(say("{name} is asked of the wrapper here", name=name))],
            Fix(
                say("Ask .module for it; what is to be trained goes through forward."),
                case.site.source.code(*edits),
                edits,
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)

            def encode(self, x):
                return self.layer(x)

        net = torch.nn.DataParallel(Net())
        net.encode(torch.randn(3, 2))

    @staticmethod
    def good():
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)

            def encode(self, x):
                return self.layer(x)

        net = torch.nn.DataParallel(Net())
        net.module.encode(torch.randn(3, 2))
