"""The vmap rule of a custom Function against the loop that it stands for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import function_class, kept, largest_gap, said, same

_COPIES = 3


@behaviour("vmap rule")
def vmap_rule(subject: Subject) -> Iterator[Problem]:
    """Outputs and gradients of a few examples at once, and one by one."""
    kind = function_class(subject)
    if kind is None or not _has_rule(kind) or not all(isinstance(each, Tensor) for each in subject.inputs):
        return
    inputs = [each.detach() for each in subject.inputs]
    floating = [i for i, each in enumerate(inputs) if each.is_floating_point() or each.is_complex()]
    batches = [
        torch.stack([each * (1 + number / 64) for number in range(_COPIES)]) if i in floating else each
        for i, each in enumerate(inputs)
    ]
    dims = tuple(0 if i in floating else None for i in range(len(inputs)))
    with kept(inputs), torch.enable_grad():
        try:
            loop = [
                _run(subject, [b[n] if i in floating else b for i, b in enumerate(batches)], floating)
                for n in range(_COPIES)
            ]
            wanted = [torch.stack(parts) for parts in zip(*loop, strict=True)]
        except Exception:  # other values than those given may be outside of the function's domain
            return
        try:
            found = torch.func.vmap(lambda *args: tuple(_run(subject, list(args), floating)), in_dims=dims)(*batches)
        except Exception as error:  # whatever a rule raises
            yield Problem(
                "vmap rule fails",
                f"{kind.__name__} has a vmap rule, but under torch.vmap it fails where the loop does not: "
                f"{said(error)}",
                "correct vmap(info, in_dims, *args), or set generate_vmap_rule = True in its place",
            )
            return
    if not same(wanted, list(found)):
        yield Problem(
            "vmap rule is wrong",
            f"{kind.__name__} under torch.vmap differs by {largest_gap(wanted, list(found)):.3g} from the loop over"
            f" {_COPIES} examples",
            "correct vmap(info, in_dims, *args): the dimension of the batch, and out_dims; or generate_vmap_rule ="
            " True",
        )


def _has_rule(kind: type[torch.autograd.Function]) -> bool:
    return kind.generate_vmap_rule or kind.vmap is not torch.autograd.Function.vmap


def _run(subject: Subject, inputs: list[Tensor], floating: list[int]) -> list[Tensor]:
    """The outputs for one example, and their gradients for a seed of ones."""

    def call(*chosen: Tensor) -> tuple[Tensor, ...]:
        every = list(inputs)
        for position, each in zip(floating, chosen, strict=True):
            every[position] = each
        leaves = pytree.tree_leaves(subject.call(every))
        return tuple(each for each in leaves if isinstance(each, Tensor) and each.is_floating_point())

    outputs, pull, *_ = torch.func.vjp(call, *(inputs[position] for position in floating))
    return [*outputs, *pull(tuple(torch.ones_like(each) for each in outputs))]
