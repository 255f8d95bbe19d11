"""A batch of no examples: where forward works, backward has to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.autodiff.state import fresh_modules
from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, kept, said


@behaviour("empty batch")
def empty(subject: Subject) -> Iterator[Problem]:
    """All inputs of the size of the batch cut to 0 examples."""
    sizes = [leaf.shape[0] for leaf in pytree.tree_leaves(subject.inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    if not sizes or sizes[0] == 0 or not Trial.of(subject).custom():
        return  # Some operations of torch do not look whether sizes fit, and crash.
    leaves: list[Tensor] = []

    def cut(tensor: Tensor) -> Tensor:
        shorter = tensor.detach()
        shorter = shorter[:0].clone() if tensor.dim() and tensor.shape[0] == sizes[0] else shorter.clone()
        if shorter.is_floating_point() or shorter.is_complex():
            leaves.append(shorter.requires_grad_())
        return shorter

    with kept(tuple(subject.wrt.values())), torch.enable_grad(), fresh_modules(subject.f), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = pytree.tree_leaves(subject.call(pytree.tree_map_only(Tensor, cut, subject.inputs)))
        except Exception:  # a function may refuse an empty batch
            return
        outputs = [each for each in found if isinstance(each, Tensor) and each.requires_grad]
        if isinstance(subject.f, nn.Module):
            leaves += [each for each in subject.f.parameters() if each.requires_grad]
        if not leaves or not outputs:
            return
        try:
            torch.autograd.grad(outputs, leaves, [torch.ones_like(each) for each in outputs], allow_unused=True)
        except Exception as error:  # whatever a backward raises on an empty batch
            yield Problem(
                "backward fails on an empty batch",
                f"forward takes a batch of 0 examples, backward does not: {said(error)}",
                "use shapes that are saved in forward; no division by the number of examples, no view(-1, ...)",
            )
