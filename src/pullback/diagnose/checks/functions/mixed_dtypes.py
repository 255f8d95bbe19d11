"""PB719: a backward that mixes dtypes, because forward ran under autocast."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    asked_marks,
    backward_of,
    method_of,
    running,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix, Subject
from pullback.language import say
from pullback.words import dtype_name

LOW = (torch.float16, torch.bfloat16)


class MixedDtypes(Cause):
    """The backward of a custom Function mixes dtypes, because forward ran under autocast and backward did not.

    Inside ``torch.autocast`` a matrix product of float32 tensors gives float16 or bfloat16. So the gradient that
    arrives has that dtype, while the saved inputs are float32; and ``backward`` runs without autocast, where torch
    does not mix them.

    ``@torch.amp.custom_fwd(device_type=...)`` on ``forward`` and ``@torch.amp.custom_bwd(device_type=...)`` on
    ``backward`` (both below ``@staticmethod``) make backward run with the autocast state of forward. With
    ``cast_inputs=torch.float32`` the Function runs in full precision instead.

    Calling ``.backward()`` inside the ``autocast`` block is not recommended, and ``.half()`` of the model is something
    else.
    """

    code = "PB719"
    title = "A Function's backward mixes dtypes, because its forward ran under autocast."
    says = ("same dtype", "expected scalar type", "dtype mismatch", "must be the same dtype")

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = running(case)
        if found is None:
            return None
        node, frame = found
        kind = node._forward_cls
        forward, backward = method_of(kind, "forward"), backward_of(kind)
        if forward is None or backward is None or _decorated(backward, "custom_bwd"):
            return None
        low, full = _dtypes(frame, backward)
        if low is None or full is None:
            return None
        device = low[1].device.type
        sure = not _casts(forward) and _autocast_near(case, forward)
        name, other = low[0], full[0]
        marks = [case.mark(say("{name} and {other} are of two dtypes here", name=name, other=other))]
        marks.append(forward.mark(forward.node, say("forward ran under autocast")))
        marks += [*applied_marks(case, kind, node), *asked_marks(case)]
        edits = _edits(case, forward, backward, device)
        return self.found(
            say(
                "{kind}.forward ran under autocast: its output, and so the gradient {name}, is {low}, but the saved "
                "{other} is {full}. backward runs without autocast, so nothing brings them together.",
                kind=kind.__name__,
                name=name,
                low=dtype_name(low[1].dtype),
                other=other,
                full=dtype_name(full[1].dtype),
            ),
            marks,
            Fix(
                say("Let backward run with the autocast state of forward."),
                f'@torch.amp.custom_fwd(device_type="{device}")    # {kind.__name__}.forward\n'
                f'@torch.amp.custom_bwd(device_type="{device}")    # {kind.__name__}.backward',
                edits,
                "high" if edits and sure else "medium",
            ),
            tensors=[Subject.of(low[1], name, "gradient"), Subject.of(full[1], other, "saved")],
            confidence="high" if sure else "medium",
            apart="" if sure else say("Whether forward ran under autocast, or casts on its own."),
            useless=[say("Calling backward() inside the autocast block: torch advises against it.")],
        )

    @staticmethod
    def bad():
        import torch

        class Dense(torch.autograd.Function):
            @staticmethod
            def forward(ctx, batch, weight):
                ctx.save_for_backward(batch, weight)
                return torch.nn.functional.linear(batch, weight)

            @staticmethod
            def backward(ctx, grad):
                batch, weight = ctx.saved_tensors
                grad_batch = grad.mm(weight)
                return grad_batch, grad.t().mm(batch)

        batch, weight = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = Dense.apply(batch, weight).float().pow(2).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        class Dense(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cpu")
            def forward(ctx, batch, weight):
                ctx.save_for_backward(batch, weight)
                return torch.nn.functional.linear(batch, weight)

            @staticmethod
            @torch.amp.custom_bwd(device_type="cpu")
            def backward(ctx, grad):
                batch, weight = ctx.saved_tensors
                grad_batch = grad.mm(weight)
                return grad_batch, grad.t().mm(batch)

        batch, weight = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = Dense.apply(batch, weight).float().pow(2).mean()
        loss.backward()


Named = tuple[str, Tensor]


def _dtypes(frame: Frame, backward: Method) -> tuple[Named | None, Named | None]:
    """A gradient of low precision, and a tensor of another floating dtype, among the variables of backward."""
    low: Named | None = None
    for name in backward.names[1:]:
        value: Any = frame.local.get(name)
        if isinstance(value, Tensor) and value.dtype in LOW:
            low = low or (name, value)
    full: Named | None = None
    for name, value in frame.local.items():
        if low is not None and isinstance(value, Tensor) and value.is_floating_point() and value.dtype != low[1].dtype:
            full = full or (name, value)
    return low, full


def _decorated(method: Method, name: str) -> bool:
    return any(name in method.text(each) for each in getattr(method.node, "decorator_list", []))


def _casts(forward: Method) -> bool:
    """Whether forward itself names a dtype."""
    words = {each.attr for each in forward.inner if isinstance(each, ast.Attribute)}
    return bool(words & {"half", "bfloat16", "float16", "to"})


def _autocast_near(case: Case, forward: Method) -> bool:
    """Whether the program uses autocast at all."""
    files = {frame.source.file: frame.source for frame in case.frames} | {forward.source.file: forward.source}
    return any("autocast" in line for source in files.values() for line in source.lines)


def _edits(case: Case, forward: Method, backward: Method, device: str) -> tuple[Edit, ...]:
    if not (forward.own and backward.own and _has_torch(forward)):
        return ()
    edits = []
    for method, name in ((forward, "custom_fwd"), (backward, "custom_bwd")):
        if _decorated(method, name):
            continue
        line = method.node.lineno
        edits.append(method.source.inserted_before(line, f'@torch.amp.{name}(device_type="{device}")'))
    return tuple(edits)


def _has_torch(method: Method) -> bool:
    """Whether the file calls torch by its name."""
    for node in ast.walk(method.source.tree):
        if isinstance(node, ast.Import) and any(each.name == "torch" and not each.asname for each in node.names):
            return True
    return False
