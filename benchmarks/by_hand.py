"""The dense Jacobians as one writes them who knows the function: no library, every structure used."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.dense_problems import Case

Call = Callable[[], object]


def _forward(case: Case) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """The weights of a network, what enters each layer, and the slopes of tanh between them."""
    assert isinstance(case.model, nn.Sequential)
    weights, entered, slopes, h = [], [], [], case.x
    for layer in case.model:
        if isinstance(layer, nn.Linear):
            weights.append(layer.weight)
            entered.append(h)
        h = layer(h)
        if isinstance(layer, nn.Tanh):
            slopes.append(1 - h * h)
    return weights, entered, slopes, h


def _times(stack: Tensor, matrix: Tensor) -> Tensor:
    """A stack of matrices by one matrix, as one product of two matrices rather than one for each of the stack."""
    return (stack.flatten(0, 1) @ matrix).view(*stack.shape[:2], -1)


def chain(case: Case) -> dict[str, Call]:
    """A: the product of the layers' matrices, from the left, where it is thinnest."""

    def call() -> Tensor:
        with torch.no_grad():
            weights, _, slopes, _ = _forward(case)
            J = weights[-1]
            for weight, slope in zip(weights[-2::-1], slopes[::-1], strict=True):
                J = (J * slope) @ weight
            return J

    return {"by hand: product of the layers": call}


def tangents(case: Case) -> dict[str, Call]:
    """B: the three tangents of every example in one matrix product for each layer."""

    def call() -> Tensor:
        with torch.no_grad():
            weights, _, slopes, _ = _forward(case)
            T = slopes[0][:, None] * weights[0].T.contiguous()
            for weight, slope in zip(weights[1:-1], slopes[1:], strict=True):
                T = _times(T, weight.T).mul_(slope[:, None])
            return _times(T, weights[-1].T).transpose(1, 2)

    return {"by hand: three tangents for all examples": call}


def diagonals(case: Case) -> dict[str, Call]:
    """E (and S): three diagonals."""
    x = case.x
    n = len(x)
    i = torch.arange(n)

    def call() -> Tensor:
        J = x.new_zeros(n, n)
        J[i, i] = x.cos() * x.roll(1)
        J[i, i.roll(1)] = x.sin()
        J[i, i.roll(-1)] += 2 * x.roll(-1)
        return J

    return {"by hand: three diagonals": call}


def closed_form(case: Case) -> dict[str, Call]:
    """F: the derivative of sin(W x)."""
    w, x = case.numbers["w"], case.x
    return {"by hand: cos(W x) W": lambda: (w @ x).cos()[:, None] * w}


def _cotangents(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """What enters each layer, ``(examples, before)``, and the outputs' gradients there, ``(examples, m, after)``."""
    weights, entered, slopes, y = _forward(case)
    gradients = [torch.eye(y.shape[1], dtype=y.dtype).expand(len(y), -1, -1)]
    gradients.append(weights[-1] * slopes[-1][:, None])
    for weight, slope in zip(weights[-2:0:-1], slopes[-2::-1], strict=True):
        gradients.append(_times(gradients[-1], weight).mul_(slope[:, None]))
    return entered, gradients[::-1]


def outer_products(case: Case) -> dict[str, Call]:
    """G: for each layer the outer products of the outputs' gradients and what enters, fresh or into tensors kept."""

    def write(kept: list[Tensor] | None) -> list[Tensor]:
        with torch.no_grad():
            blocks = []
            for k, (h, gradient) in enumerate(zip(*_cotangents(case), strict=True)):
                weight = None if kept is None else kept[2 * k]
                blocks.append(torch.mul(gradient[..., None], h[:, None, None], out=weight))
                blocks.append(gradient.clone() if kept is None else kept[2 * k + 1].copy_(gradient))
            return blocks

    kept: list[list[Tensor]] = []

    def reused() -> list[Tensor]:
        if not kept:
            kept.append(write(None))
        return write(kept[0])

    return {"by hand: outer products": lambda: write(None), "by hand: outer products, output reused": reused}


def layerwise(case: Case) -> dict[str, Call]:
    """G2: for each layer the Gram matrix of gradients, times that of what enters and 1 for the bias."""

    def call() -> Tensor:
        with torch.no_grad():
            examples = len(case.x)
            total: Tensor | None = None
            for h, gradient in zip(*_cotangents(case), strict=True):
                flat = gradient.reshape(-1, gradient.shape[-1])
                outputs = len(flat) // examples
                part = (flat @ flat.T).view(examples, outputs, examples, outputs)
                part *= (h @ h.T + 1)[:, None, :, None]
                total = part if total is None else total.add_(part)
            assert total is not None
            return total.flatten(2).flatten(0, 1)

    return {"by hand: Gram matrices of the layers": call}


ALL: dict[str, Callable[[Case], dict[str, Call]]] = {
    "A": chain,
    "B": tangents,
    "E": diagonals,
    "F": closed_form,
    "G": outer_products,
    "G2": layerwise,
}
