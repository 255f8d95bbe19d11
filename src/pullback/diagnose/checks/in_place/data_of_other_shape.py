"""PB436: a parameter given data of another shape after its forward pass."""

from __future__ import annotations

import ast

from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.frames import variables
from pullback.language import say


class DataOfOtherShape(Cause):
    """The shape of a parameter was changed through `.data` between the forward pass and `optimizer.step()`.

    `w.data = other` is noticed by nobody: the backward pass stores a gradient of the shape that the graph knows,
    and only the optimizer fails, with a message about broadcasting. The same happens with the optimizer's own state
    (momentum) if the shape changes between two steps.

    Change the shape *before* the forward pass, by a new `nn.Parameter`, and make a new optimizer for it.
    """

    code = "PB436"
    title = (
        "A parameter got another shape, through .data or by hand, and its gradient or the optimizer kept the old one."
    )
    says = ("must match", "size mismatch", "shape")

    def diagnose(self, case: Case) -> Diagnosis | None:
        optimizer = next(
            (
                found
                for frame, _, _ in frames_of(case.error.__traceback__)
                if "/optim/" in frame.f_code.co_filename.replace("\\", "/")
                and isinstance(found := variables(frame).get("self"), Optimizer)
            ),
            None,
        )
        if optimizer is None or case.site is None:
            return None
        wrong = _wrong(optimizer)
        if wrong is None:
            return None
        parameter, what, shape = wrong
        name = case.name_of(parameter, say("a parameter"))
        return self.found(
            say(
                "{name} has shape {new} now, but {what} has shape {old}: it was replaced after that was made.",
                name=name,
                new=tuple(parameter.shape),
                what=what,
                old=shape,
            ),
            [case.mark(say("the optimizer meets both shapes here")), *_set(case, parameter)],
            Fix(
                say("Change the shape before the forward pass, and make a new optimizer afterwards."),
                f"{name} = torch.nn.Parameter(...)\noptimizer = torch.optim.{type(optimizer).__name__}(...)",
            ),
            tensors=[case.subject(parameter, "parameter", name)],
        )

    @staticmethod
    def bad():
        import torch

        weight = torch.nn.Parameter(torch.randn(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        error = (weight * 2).sum()
        weight.data = torch.randn(4)
        error.backward()
        optimizer.step()

    @staticmethod
    def good():
        import torch

        weight = torch.nn.Parameter(torch.randn(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        error = weight.square().sum()
        error.backward()
        optimizer.step()


def _wrong(optimizer: Optimizer) -> tuple[Tensor, str, tuple[int, ...]] | None:
    """A parameter whose gradient or state has another shape, with what has it and that shape."""
    for group in optimizer.param_groups:
        for each in group["params"]:
            if each.grad is not None and each.grad.shape != each.shape:
                return each, say("its gradient"), tuple(each.grad.shape)
            for key, value in optimizer.state.get(each, {}).items():
                if isinstance(value, Tensor) and value.dim() and value.shape != each.shape:
                    return each, say("the optimizer's {key} of it", key=key), tuple(value.shape)
    return None


def _set(case: Case, parameter: Tensor) -> list[Mark]:
    """The line that gave the parameter other data."""
    what = say("it was given data of another shape here")
    if case.tape is not None:
        for call in reversed(case.tape.calls):
            if (
                call.name == "set data"
                and call.spot is not None
                and any(each.tensor() is parameter for each in call.inputs)
            ):
                return [call.spot.mark(what)]
    for frame in reversed(case.frames):
        for node in ast.walk(frame.source.tree):
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                if (
                    isinstance(target, ast.Attribute)
                    and target.attr == "data"
                    and frame.evaluated(target.value) is parameter
                ):
                    return [marked(frame.source, node, what)]
    return []
