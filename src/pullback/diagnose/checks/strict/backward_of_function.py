"""PBA902: the backward of a custom Function does not fit its forward."""

from __future__ import annotations

import ast
import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.functions.watched import OfFunctions
from pullback.diagnose.evidence.gradchecks import method_of
from pullback.diagnose.evidence.transforms import Defined
from pullback.diagnose.evidence.verdicts import random_calls
from pullback.diagnose.recorders.functions import Application
from pullback.diagnose.values import Fix
from pullback.language import say

STEPS = (1e-4, 3e-5)
# Calls that a second run of a forward would repeat for all to see.
EFFECTS = frozenset(
    {"print", "open", "write", "append", "extend", "update", "save", "log", "info", "debug", "warning", "add", "pop"}
)


class BackwardOfFunction(OfFunctions):
    """The ``backward`` of a custom ``autograd.Function`` gives other values than differences of its ``forward``.

    At the first calls of each Function its forward is run again, on copies in float64, a little to both sides along a
    random direction; the change of the outputs is compared with what the gradients of ``backward`` promise. torch
    itself compares nothing: a wrong formula, a missing factor, or ``None`` for an input that needs a gradient trains
    silently in a wrong direction. A gradient of a broadcastable shape is summed silently.

    Derive the backward again, return a gradient of exactly the shape of each input, and check it:
    ``pullback.check(MyFunction.apply, inputs)``. A Function whose gradient is *meant* to differ (straight-through,
    gradient reversal or clipping, where forward is the identity or constant by pieces) is not reported.
    A Function is skipped whose forward is random, prints, writes to anything but ``ctx``, or does not run in float64.
    """

    code = "PBA902"
    title = "The backward of a custom Function does not agree with its forward."

    def applied(self, audit: Audit, kind: type, application: Application) -> bool:
        if not _safe(kind):
            return False
        with _undisturbed():
            try:
                differences = list(_compared(application))
            except Exception:  # it does not run in float64, or not alone: nothing can be said
                return False
        if differences:
            self._tell(audit, kind, application, differences[0])
        return bool(differences)

    def _tell(self, audit: Audit, kind: type, application: Application, found: Difference) -> None:
        method = method_of(kind, "backward")
        marks = method.marks(say("this gradient does not fit the forward")) if method is not None else []
        if application.spot is not None:
            marks.append(application.spot.mark(say("{name} is applied here", name=kind.__name__)))
        forward = method_of(kind, "forward")
        names = forward.parameters if forward is not None else []
        shift = 1 if method_of(kind, "setup_context") is None else 0
        at = found.input + shift
        name = names[at] if at < len(names) else str(found.input)
        told = say("backward returns None for it") if found.missing else say(
            "along a random direction, backward promises {one} and differences of forward give {two}",
            one=f"{found.promised:.6g}", two=f"{found.measured:.6g}",
        )  # fmt: skip
        shape = "" if found.shape is None else " " + say(
            "The gradient has shape {given}, the input {wanted}: autograd sums it silently.",
            given=found.shape, wanted=tuple(application.before[found.input].shape),
        )  # fmt: skip
        audit.report(
            self.found(
                say("The gradient of {name} by its input {input} is wrong: {told}.{shape}",
                    name=kind.__name__, input=name, told=told, shape=shape),
                marks,
                Fix(
                    say(
                        "Derive backward again for what forward computes; pullback.check compares them to the last "
                        "digits."
                    ),
                    f"import pullback\npullback.check({kind.__name__}.apply, inputs)",
                ),
                confidence="high" if found.missing or found.shape is not None else "medium",
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.square() * 3

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 3 * x

        a = torch.tensor([1.0, 2.0], requires_grad=True)
        Scaled.apply(a).sum().backward()

    @staticmethod
    def good():
        import torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.square() * 3

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 6 * x

        a = torch.tensor([1.0, 2.0], requires_grad=True)
        Scaled.apply(a).sum().backward()


@dataclass(frozen=True)
class Difference:
    """An input whose gradient does not fit: its number, both derivatives, and the gradient's shape if it was summed."""

    input: int
    promised: float
    measured: float
    missing: bool
    shape: tuple[int, ...] | None


def _safe(kind: type) -> bool:
    """Whether nobody will notice that the methods of a Function run once more."""
    for name in ("forward", "setup_context", "backward"):
        method = method_of(kind, name)
        if method is not None and (random_calls(method) or _effects(method)):
            return False
    return method_of(kind, "backward") is not None


def _effects(where: Defined) -> bool:
    contexts = {name for name in where.parameters if name.startswith("ctx") or name in {"self", "context"}}
    contexts |= set(where.parameters[:1])
    for node in ast.walk(where.scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in EFFECTS:
                return True
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") not in contexts:
                return True
            if isinstance(target, ast.Subscript) and getattr(target.value, "id", "") not in where.code.co_varnames:
                return True
    return False


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The random states as they were, afterwards."""
    plain = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(plain)
        if numpy is not None:
            numpy.random.set_state(state)


def _compared(application: Application) -> Iterator[Difference]:
    """The inputs whose gradient does not fit, by one random direction for each."""
    kind, point = application.kind, _doubled(application.before)
    wanted = [
        at
        for at, each in enumerate(application.given)
        if isinstance(each, Tensor)
        and each.requires_grad
        and each.dtype in {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    ]
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        leaves = list(_doubled(point))
        for at in wanted:
            leaves[at] = (leaves[at].requires_grad_() * 1) if isinstance(leaves[at], Tensor) else leaves[at]
        result = kind.apply(*leaves)  # type: ignore[attr-defined]
    outputs = result if isinstance(result, tuple) else (result,)
    node = next((each.grad_fn for each in outputs if isinstance(each, Tensor) and each.grad_fn is not None), None)
    if node is None or getattr(node, "_forward_cls", None) is not kind or len(outputs) != len(node._input_metadata):
        return
    seeds = [_like(each, generator) if isinstance(each, Tensor) else None for each in outputs]
    with torch.no_grad():
        if _identity(kind, point, wanted, generator):
            return
        gradients = node.apply(*[copy.copy(each) for each in seeds])  # type: ignore[attr-defined]
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    for at in wanted:
        gradient = gradients[at] if at < len(gradients) else None
        if (found := _difference(kind, point, at, seeds, gradient, generator)) is not None:
            yield found


def _doubled(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        each.detach().to(torch.float64, copy=True) if isinstance(each, Tensor) and each.is_floating_point()
        else each.detach().clone() if isinstance(each, Tensor) else each
        for each in values
    )  # fmt: skip


def _like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)


def _identity(kind: type, point: tuple[Any, ...], wanted: list[int], generator: torch.Generator) -> bool:
    """Whether forward hands an input through: then backward is the point of the Function."""
    moved = list(_doubled(point))
    for at in wanted:
        moved[at] = moved[at] + 1e-3 * _like(moved[at], generator)
    result = kind.apply(*_doubled(tuple(moved)))  # type: ignore[attr-defined]
    return any(
        isinstance(each, Tensor) and each.shape == moved[at].shape and bool(torch.equal(each.double(), moved[at]))
        for each in (result if isinstance(result, tuple) else (result,))
        for at in wanted
    )


def _difference(
    kind: type, point: tuple[Any, ...], at: int, seeds: list[Tensor | None], gradient: Any, generator: torch.Generator
) -> Difference | None:
    with torch.no_grad():
        direction = _like(point[at], generator)
        measured = [_slope(kind, point, at, seeds, direction, step) for step in STEPS]
        scale = abs(measured[0]) + abs(measured[1])
        if abs(measured[0] - measured[1]) > 1e-4 * (scale + 1e-3) or scale < 1e-7:
            return None  # a kink, or constant by pieces: nothing to compare with
        if gradient is None:
            return Difference(at, 0.0, measured[-1], True, None)
        given = gradient.detach().double()
        summed = given.sum_to_size(point[at].shape)
        promised = float((summed * direction).sum())
        if abs(promised - measured[-1]) <= 1e-3 * (abs(promised) + scale):
            return None
        return Difference(
            at, promised, measured[-1], False, tuple(given.shape) if given.shape != summed.shape else None
        )


def _slope(
    kind: type, point: tuple[Any, ...], at: int, seeds: list[Tensor | None], direction: Tensor, step: float
) -> float:
    sides = []
    for sign in (1, -1):
        moved = list(_doubled(point))
        moved[at] = moved[at] + sign * step * direction
        result = kind.apply(*moved)  # type: ignore[attr-defined]
        results = result if isinstance(result, tuple) else (result,)
        sides.append(sum(float((each.double() * seed).sum()) for each, seed in zip(results, seeds, strict=True)
                         if isinstance(each, Tensor) and seed is not None and each.is_floating_point()))  # fmt: skip
    return (sides[0] - sides[1]) / (2 * step)
