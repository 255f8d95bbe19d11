"""PB643: clipping refused gradients that are not finite."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.evidence.frames import Spot, frames_of
from pullback.diagnose.evidence.freed.find import reached
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.frames import variables
from pullback.language import say

# The nodes of operations whose derivative is infinite somewhere.
RISKY = ("Log", "Sqrt", "Div", "Reciprocal", "Rsqrt", "Pow", "LinalgVectorNorm", "Norm", "Acos", "Asin", "Atanh")


class NormNotFinite(Cause):
    """``clip_grad_norm_(..., error_if_nonfinite=True)`` found a gradient with NaN or infinity in it.

    The clipping is not at fault: it is the first to look. Such a gradient comes from the backward pass before it: a
    square root, a logarithm or a norm at 0, a division by 0, an overflow in float16, or a loss that is NaN already.

    ``torch.autograd.set_detect_anomaly(True)`` names the operation whose gradient is NaN first. Leaving out
    ``error_if_nonfinite`` multiplies all gradients by NaN or 0 instead, and a smaller ``max_norm`` changes nothing.
    """

    code = "PB643"
    title = "The gradients were to be clipped, but some of them are NaN or infinite."
    says = ("is non-finite, so it cannot be clipped",)
    raises = (RuntimeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        given = _clipped(case)
        bad = [(each, grad) for each in given if (grad := each.grad) is not None and _spoilt(grad)]
        if case.site is None:
            return None
        told = ", ".join(_told(case, each, grad) for each, grad in bad[:4])
        marks: list[Mark] = [case.mark(say("clipped here"))]
        asking = case.passes[-1].spot if case.passes else None
        if asking is not None:
            marks += [*_loss_marks(case, asking), asking.mark(say("this pass computed the gradients"))]
        return self.found(
            say("Gradients that are not finite: {gradients}.", gradients=told)
            if told
            else say("Each gradient is finite, but the norm of all of them is not: it overflows."),
            marks,
            Fix(
                say("Mend what makes the gradient infinite: keep the arguments of roots, logarithms and divisions away "
                    "from 0, or skip this step."),
                "with torch.autograd.set_detect_anomaly(True):\n    ...    # "
                + say("the forward pass and backward(): names the operation"),
            ),
            tensors=[case.subject(each, "parameter") for each, _ in bad[:4]],
            useless=[say("leaving out error_if_nonfinite: every gradient is then multiplied by NaN or 0")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        w = torch.zeros(2, requires_grad=True)
        v = torch.ones(2, requires_grad=True)
        (w.sqrt().sum() + v.sum()).backward()
        torch.nn.utils.clip_grad_norm_([w, v], 1.0, error_if_nonfinite=True)

    @staticmethod
    def good():
        import torch

        w = torch.ones(2, requires_grad=True)
        v = torch.ones(2, requires_grad=True)
        (w.sqrt().sum() + v.sum()).backward()
        torch.nn.utils.clip_grad_norm_([w, v], 1.0, error_if_nonfinite=True)


def _clipped(case: Case) -> list[Tensor]:
    """The parameters whose gradients were to be clipped."""
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_name == "clip_grad_norm_":
            given = variables(frame).get("parameters")
            if isinstance(given, Tensor):
                return [given]
            if isinstance(given, list | tuple):
                return [each for each in given if isinstance(each, Tensor)]
    return [each for _, each in _parameters(case)]


def _loss_marks(case: Case, asking: Spot) -> list[Mark]:
    """The line that computed the root of the pass, and the recorded ones that divide, take roots or logarithms."""
    frame = next((each for each in case.frames if each.code is asking.code), None)
    node = asking.node
    root = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if frame is None or root is None:
        return []
    value = frame.evaluated(root)
    graph = reached([value.grad_fn]) if isinstance(value, Tensor) else {}
    risky = [case.line_of(each) for each in graph if each.name().startswith(RISKY)]
    lines = {place[:2]: place for place in risky if place is not None}
    if lines:
        return [case.mark_at(place, say("its derivative may be infinite")) for place in list(lines.values())[:3]]
    steps = definitions(case, root, frame)
    return [steps[0].mark(say("the loss was computed here"))] if steps else []


def _parameters(case: Case) -> Iterable[tuple[str, Tensor]]:
    for name, module in case.holds(torch.nn.Module):
        yield from ((f"{name}.{path}", each) for path, each in module.named_parameters())


def _spoilt(grad: Tensor) -> bool:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        values = grad._values() if grad.layout is torch.sparse_coo else grad
        return not bool(torch.isfinite(values).all())


def _told(case: Case, tensor: Tensor, grad: Tensor) -> str:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        values = grad._values() if grad.layout is torch.sparse_coo else grad
        nan, bad = int(torch.isnan(values).sum()), int((~torch.isfinite(values)).sum())
    return f"{case.name_of(tensor, say('a parameter'))} ({nan} NaN, {bad - nan} inf)"
