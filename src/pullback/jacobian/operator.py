"""Linear operators between pytrees of tensors: what ``@``, ``.T``, ``+``, ``*`` mean for anything like a Jacobian.

An operator says four things: its two Spaces, how it pushes a stack of tangents forward and how it pulls a stack of
cotangents back. Everything else is derived from them; a class is either this abstract one or final.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.autodiff.seeds import checked_cast
from pullback.data.space import Form, Space
from pullback.errors import ArgumentError, ValueMismatch


class Operator(ABC):
    """A linear map from a Space of inputs to a Space of outputs.

    For complex tensors it is linear over the reals, and ``.T`` is its adjoint for the inner product
    ``Re⟨a, b⟩ = Re Σ conj(a) b``; that is what torch's backward computes.
    """

    @property
    @abstractmethod
    def inputs(self) -> Space:
        """Where tangents live."""

    @property
    @abstractmethod
    def outputs(self) -> Space:
        """Where cotangents live."""

    @abstractmethod
    def push(self, tangents: Tensors) -> Tensors:
        """``Av`` for one tangent, a tensor for each input leaf."""

    @abstractmethod
    def pull(self, cotangents: Tensors) -> Tensors:
        """``uᵀA`` for one cotangent, a tensor for each output leaf."""

    @abstractmethod
    def push_stack(self, stacks: Tensors) -> Tensors:
        """``Av`` for a stack of tangents, along a leading dimension."""

    @abstractmethod
    def pull_stack(self, stacks: Tensors) -> Tensors:
        """``uᵀA`` for a stack of cotangents, along a leading dimension."""

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n): the number of output and of input elements."""
        return self.outputs.size, self.inputs.size

    @property
    def T(self) -> Operator:
        """The transpose: ``A.T @ u`` is ``uᵀA``, what ``y.backward(u)`` adds to ``x.grad``."""
        return Transpose(self)

    def pushforward(self, tangent: Any) -> Any:
        """``Jv`` for a tangent in the structure of the inputs, in the structure of the outputs.

        Args:
            tangent: One tensor for each input, of its shape, in the same structure.
        """
        stacks, form = self.inputs.read(tangent, name="tangent")
        _needs_structure(form, self.inputs, "tangent")
        return self.outputs.write(self.push(_cast(stacks, self.inputs, "tangent")), form)

    def pullback(self, seed: Any) -> Any:
        """``uᵀJ`` for a seed in the structure of the outputs, in the structure of the inputs.

        Args:
            seed: One tensor for each output, of its shape, in the same structure.
        """
        stacks, form = self.outputs.read(seed, name="seed")
        _needs_structure(form, self.outputs, "seed")
        return self.inputs.write(self.pull(_cast(stacks, self.outputs, "seed")), form)

    def matrix(self) -> Tensor:
        """The operator as a matrix ``(m, n)``, by the shorter side's unit vectors."""
        m, n = self.shape
        if m < n:
            rows = self.pull_stack(self.outputs.onehots(torch.arange(m)))
            return self.inputs.write(rows, Form.STACK).mT  # type: ignore[no-any-return]
        columns = self.push_stack(self.inputs.onehots(torch.arange(n)))
        return self.outputs.write(columns, Form.STACK)  # type: ignore[no-any-return]

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Operator):
            return Product(self, other)
        values, form = self.inputs.read(other, name="the right side of @")
        values = _cast(values, self.inputs, "the right side of @")
        results = self.push_stack(values) if form is Form.STACK else self.push(values)
        return self.outputs.write(results, form)

    def __add__(self, other: Operator) -> Operator:
        if not isinstance(other, Operator):
            return NotImplemented
        return Sum(self, other)

    def __sub__(self, other: Operator) -> Operator:
        if not isinstance(other, Operator):
            return NotImplemented
        return Sum(self, Scaled(other, -1))

    def __mul__(self, factor: float | Tensor) -> Operator:
        return Scaled(self, _scalar(factor))

    __rmul__ = __mul__

    def __truediv__(self, factor: float | Tensor) -> Operator:
        return Scaled(self, 1 / _scalar(factor))

    def __neg__(self) -> Operator:
        return Scaled(self, -1)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.shape[0]} x {self.shape[1]}: {self.inputs.describe()} -> {self.outputs.describe()})"


@final
class Transpose(Operator):
    """The transpose of an operator."""

    def __init__(self, base: Operator) -> None:
        self.base = base

    @property
    def inputs(self) -> Space:
        return self.base.outputs

    @property
    def outputs(self) -> Space:
        return self.base.inputs

    @property
    def T(self) -> Operator:
        return self.base

    def push(self, tangents: Tensors) -> Tensors:
        return self.base.pull(tangents)

    def pull(self, cotangents: Tensors) -> Tensors:
        return self.base.push(cotangents)

    def push_stack(self, stacks: Tensors) -> Tensors:
        return self.base.pull_stack(stacks)

    def pull_stack(self, stacks: Tensors) -> Tensors:
        return self.base.push_stack(stacks)

    def matrix(self) -> Tensor:
        matrix = self.base.matrix()
        return matrix.mH


@final
class Sum(Operator):
    """The sum of two operators between the same spaces."""

    def __init__(self, left: Operator, right: Operator) -> None:
        _same_space(left.inputs, right.inputs, "inputs", "A + B")
        _same_space(left.outputs, right.outputs, "outputs", "A + B")
        self.left = left
        self.right = right

    @property
    def inputs(self) -> Space:
        return self.left.inputs

    @property
    def outputs(self) -> Space:
        return self.left.outputs

    def push(self, tangents: Tensors) -> Tensors:
        return _add(self.left.push(tangents), self.right.push(tangents))

    def pull(self, cotangents: Tensors) -> Tensors:
        return _add(self.left.pull(cotangents), self.right.pull(cotangents))

    def push_stack(self, stacks: Tensors) -> Tensors:
        return _add(self.left.push_stack(stacks), self.right.push_stack(stacks))

    def pull_stack(self, stacks: Tensors) -> Tensors:
        return _add(self.left.pull_stack(stacks), self.right.pull_stack(stacks))

    def matrix(self) -> Tensor:
        return self.left.matrix() + self.right.matrix()


@final
class Scaled(Operator):
    """An operator times a real number."""

    def __init__(self, base: Operator, factor: float | Tensor) -> None:
        self.base = base
        self.factor = factor

    @property
    def inputs(self) -> Space:
        return self.base.inputs

    @property
    def outputs(self) -> Space:
        return self.base.outputs

    def push(self, tangents: Tensors) -> Tensors:
        return _scale(self.factor, self.base.push(tangents))

    def pull(self, cotangents: Tensors) -> Tensors:
        return _scale(self.factor, self.base.pull(cotangents))

    def push_stack(self, stacks: Tensors) -> Tensors:
        return _scale(self.factor, self.base.push_stack(stacks))

    def pull_stack(self, stacks: Tensors) -> Tensors:
        return _scale(self.factor, self.base.pull_stack(stacks))

    def matrix(self) -> Tensor:
        return self.factor * self.base.matrix()


@final
class Product(Operator):
    """One operator after another: ``(A @ B) @ v`` is ``A @ (B @ v)``, the chain rule."""

    def __init__(self, left: Operator, right: Operator) -> None:
        _same_space(left.inputs, right.outputs, "A's inputs and B's outputs", "A @ B")
        self.left = left
        self.right = right

    @property
    def inputs(self) -> Space:
        return self.right.inputs

    @property
    def outputs(self) -> Space:
        return self.left.outputs

    def push(self, tangents: Tensors) -> Tensors:
        return self.left.push(_like(self.right.push(tangents), self.left.inputs))

    def pull(self, cotangents: Tensors) -> Tensors:
        return self.right.pull(_like(self.left.pull(cotangents), self.right.outputs))

    def push_stack(self, stacks: Tensors) -> Tensors:
        return self.left.push_stack(_like(self.right.push_stack(stacks), self.left.inputs))

    def pull_stack(self, stacks: Tensors) -> Tensors:
        return self.right.pull_stack(_like(self.left.pull_stack(stacks), self.right.outputs))


def _add(left: Tensors, right: Tensors) -> Tensors:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _scale(factor: float | Tensor, parts: Tensors) -> Tensors:
    return tuple((factor * part).to(part.dtype) for part in parts)


def _like(parts: Tensors, space: Space) -> Tensors:
    return tuple(
        part.reshape(part.shape[: part.ndim - len(leaf.shape)] + leaf.shape).to(dtype=leaf.dtype, device=leaf.device)
        for part, leaf in zip(parts, space.leaves, strict=True)
    )


def _cast(parts: Tensors, space: Space, name: str) -> Tensors:
    """Parts of a vector in the dtype and on the device of the leaves they belong to."""
    return tuple(
        checked_cast(part, leaf.dtype, name=name).to(leaf.device)
        for part, leaf in zip(parts, space.leaves, strict=True)
    )


def _needs_structure(form: Form, space: Space, name: str) -> None:
    if form is not Form.STRUCTURE:
        raise ValueMismatch(
            f"the {name} is not in the structure of {space.describe()}",
            got=f"a {form.value} vector of dimension {space.size}",
            fix="J @ v and J.T @ u take flat vectors and stacks of them",
        )


def _same_space(left: Space, right: Space, what: str, expression: str) -> None:
    # Names and nesting may differ (a chain rule across two functions): the numbers must line up, leaf by leaf.
    if left.shapes != right.shapes:
        raise ValueMismatch(
            f"{expression}: {what} differ",
            got=f"{left.describe()} and {right.describe()}",
            fix="the leaves must have the same shapes, in the same order",
        )


def _scalar(factor: Any) -> float | Tensor:
    if isinstance(factor, Tensor) and factor.ndim == 0 and not factor.is_complex():
        return factor
    if isinstance(factor, int | float) and not isinstance(factor, bool):
        return factor
    raise ArgumentError(
        "an operator is scaled by one real number",
        got=f"{type(factor).__name__}" + (f" of shape {tuple(factor.shape)}" if isinstance(factor, Tensor) else ""),
        fix="write 2.0 * J; to weight outputs one by one, weight the seed: J.T @ (w * u)",
    )
