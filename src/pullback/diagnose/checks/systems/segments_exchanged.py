"""PB904: the arguments of checkpoint_sequential in the wrong order."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SegmentsExchanged(Cause):
    """``checkpoint_sequential`` takes the functions, then the number of segments, then the input.

    ``checkpoint_sequential(model, 2, x)``: the number of segments comes before the input. With the two exchanged the
    input is divided by as if it were a number. Write them by name: ``segments=2, input=x``.
    """

    code = "PB904"
    title = "checkpoint_sequential was given a tensor where the number of segments belongs."
    raises = (TypeError, ValueError, RuntimeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("utils/checkpoint.py", "checkpoint_sequential")
        if local is None or case.site is None or not isinstance(local.get("segments"), Tensor):
            return None
        given = local.get("input")
        edits: tuple[Edit, ...] = ()
        call = case.call
        swapped = isinstance(given, int)
        plain = call is not None and not any(isinstance(each, ast.Starred) for each in call.args)
        if call is not None and swapped and plain and len(call.args) >= 3:
            source = case.site.source
            rest = [source.text(each) for each in (call.args[0], call.args[2], call.args[1], *call.args[3:])]
            rest += [source.text(each) for each in call.keywords]
            edits = (source.replaced(call, f"{source.text(call.func)}({', '.join(rest)})"),)
        name = case.text(case.argument("segments", 1)) or say("the tensor")
        return self.found(
            say("{name} is a tensor of shape {shape}, and was taken for the number of segments.",
                name=name, shape=tuple(local["segments"].shape)),
            [case.mark(say("{name} stands where the number of segments belongs", name=name))],
            Fix(say("Give the number of segments before the input."),
                case.site.source.code(*edits).strip() or "checkpoint_sequential(model, segments, x)",
                edits, "high" if edits else "medium"),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch
        from torch.utils.checkpoint import checkpoint_sequential

        layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        batch = torch.randn(2, 3, requires_grad=True)
        checkpoint_sequential(layers, batch, 2, use_reentrant=False).sum().backward()

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint_sequential

        layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        batch = torch.randn(2, 3, requires_grad=True)
        checkpoint_sequential(layers, 2, batch, use_reentrant=False).sum().backward()
