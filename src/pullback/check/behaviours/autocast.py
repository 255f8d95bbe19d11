"""Under autocast a custom Function is given tensors of different dtypes; without custom_fwd it may fail in backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import function_class, kept, said


@behaviour("autocast")
def autocast(subject: Subject) -> Iterator[Problem]:
    """Forward and backward in float32 with autocast to bfloat16, and without."""
    kind = function_class(subject)
    if kind is None or any(point.is_complex() for point in subject.wrt.values()):
        return
    device = next(iter(subject.wrt.values())).device.type
    if not torch.amp.is_autocast_available(device):
        return
    with kept(tuple(subject.wrt.values())), torch.enable_grad():
        try:
            _run(subject)
        except Exception:  # no function of float32
            return
        try:
            with torch.autocast(device, dtype=torch.bfloat16):
                pull = _recorded(subject)
            pull()
        except Exception as error:  # whatever it raises under autocast only
            yield Problem(
                "fails under autocast",
                f"{kind.__name__} works in float32, and fails under autocast to bfloat16: {said(error)}",
                "@torch.amp.custom_fwd(device_type=..., cast_inputs=torch.float32) and @torch.amp.custom_bwd",
                harmless=True,
            )


def _run(subject: Subject) -> None:
    _recorded(subject)()


def _recorded(subject: Subject) -> Any:
    """Evaluate in float32; what is returned runs the backward pass."""
    leaves: list[Tensor] = []

    def single(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append(tensor.detach().to(torch.float32, copy=True).requires_grad_())
        return leaves[-1]

    found = pytree.tree_leaves(subject.call(pytree.tree_map_only(Tensor, single, subject.inputs)))
    live = [each for each in found if isinstance(each, Tensor) and each.requires_grad]
    return lambda: torch.autograd.grad(live, leaves, [torch.ones_like(each) for each in live], allow_unused=True)
