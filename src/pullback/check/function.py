"""A function of tensors as a map between real vectors, with its products by reverse and forward mode.

Complex tensors are pairs of real numbers; then ``⟨u, Jv⟩ = ⟨uᵀJ, v⟩`` is one equation for real and complex functions
alike, in torch's convention for complex gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from pullback.autodiff.attention import no_fast_path
from pullback.autodiff.closures import held_by
from pullback.autodiff.reach import nodes
from pullback.autodiff.state import Ambient, fresh_modules
from pullback.data.space import Space
from pullback.errors import ArgumentError

Tensors = tuple[Tensor, ...]
Cast = Callable[[Tensor], Tensor]
OUTPUT, GRADIENT = "output", "gradient"


def as_double(tensor: Tensor) -> Tensor:
    """A tensor in double precision; integers as they are."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def as_it_is(tensor: Tensor) -> Tensor:
    """A tensor in its own dtype."""
    return tensor


class BackwardRaises(RuntimeError):
    """A backward pass of the function raised: that is a finding, where any other error is the user's to see."""


@dataclass(frozen=True)
class Chosen:
    """What to differentiate by.

    Attributes:
        names: What the tensors are called.
        places: Of those that are inputs, the positions among the leaves of the arguments.
        parameters: Of those that are parameters of the module, their names.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    parameters: tuple[str, ...]


class _Holder(nn.Module):
    """A function and the modules that it holds, so that their tensors can be replaced during a call."""

    def __init__(self, f: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.held = nn.ModuleList(modules)
        self.f = [f]

    def forward(self, *args: Any) -> Any:
        return self.f[0](*args)


class Call:
    """A user's function as one of the tensors that it is differentiated by; everything else is held fixed.

    Args:
        f: The function, module or ``torch.autograd.Function``.
        args: Its arguments.
        chosen: What it is differentiated by.
        cast: The dtype that all tensors are brought to.
        ambient: The generators and autocast.
    """

    def __init__(self, f: Any, args: tuple[Any, ...], chosen: Chosen, cast: Cast, ambient: Ambient) -> None:
        self.f = f
        self.ambient = ambient
        self.chosen = chosen
        self._leaves, self._spec = pytree.tree_flatten(args)
        self._leaves = [_apart(cast(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        is_class = isinstance(f, type) and issubclass(f, torch.autograd.Function)
        self._function = f.apply if is_class else f
        modules = [] if is_class else list({id(module): module for module in held_by(f).modules}.values())
        self._holder = _Holder(f, modules) if modules else None
        self._parameters: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        if self._holder is not None:
            self._parameters = {name: cast(p.detach()) for name, p in self._holder.named_parameters()}
            self._buffers = {name: cast(b.detach()) for name, b in self._holder.named_buffers()}
        self._keys = tuple(f"held.0.{name}" for name in chosen.parameters)

    @property
    def points(self) -> Tensors:
        """The values of the tensors chosen."""
        return (
            *(self._leaves[place] for place in self.chosen.places),
            *(self._parameters[key] for key in self._keys),
        )

    def __call__(self, points: Sequence[Tensor]) -> Any:
        """What the function returns at other values of the tensors chosen.

        The generators are set, so that it draws the same random numbers each time; whoever calls sets them back.
        """
        self.ambient.rewind()
        places = dict(zip(self.chosen.places, points, strict=False))
        filled = [
            places[i] if i in places else leaf.clone() if isinstance(leaf, Tensor) else leaf
            for i, leaf in enumerate(self._leaves)
        ]
        args = pytree.tree_unflatten(filled, self._spec)
        if self._holder is None:
            return self._function(*args)
        given = dict(zip(self._keys, points[len(self.chosen.places) :], strict=True))
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        with no_fast_path(), fresh_modules(self.f):
            return torch.func.functional_call(self._holder, {**self._parameters, **buffers, **given}, args)


@dataclass(frozen=True, eq=False)
class Recorded:
    """One evaluation with its graph."""

    outputs: Tensors
    leaves: Tensors

    def pull(self, cotangents: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """``uᵀJ``; None for an input that no output is connected to."""
        live = [(o, u.clone()) for o, u in zip(self.outputs, cotangents, strict=True) if o.requires_grad]
        if not live:
            return (None,) * len(self.leaves)
        try:
            return torch.autograd.grad(
                [o for o, _ in live], self.leaves, [u for _, u in live], retain_graph=True, allow_unused=True
            )
        except Exception as error:
            raise BackwardRaises(str(error)) from error

    @property
    def operations(self) -> int:
        """How many operations stand in the graph."""
        return sum(1 for _ in nodes([output for output in self.outputs if output.requires_grad]))


class Function:
    """A map between real vectors, ``y = f(x)``, with ``uᵀJ`` and ``Jv``.

    Outputs that carry no graph, where others do, are constants.

    Args:
        call: From tensors to any structure of tensors.
        points: The tensors at which it is looked at.
        names: What they are called.
        title: What the outputs are called.
    """

    def __init__(
        self, call: Callable[[Sequence[Tensor]], Any], points: Tensors, names: tuple[str, ...], title: str = OUTPUT
    ) -> None:
        self.call, self.points, self.names = call, points, names
        self._grad_inside = title != OUTPUT
        value, leaves = self._with_graph(points)
        self._space = Space.of(value, name=title)
        if not self._space.leaves:
            raise ArgumentError(
                "f returns no floating-point tensor",
                got=_returned(value),
                fix="return tensors; .item(), .numpy() and float() leave torch, argmax has no gradient",
            )
        results = self._space.flatten(value)
        live = [index for index, result in enumerate(results) if result.requires_grad]
        self._kept = live or list(range(len(results)))
        self.constants = tuple(name for i, name in enumerate(self._space.names) if i not in self._kept)
        self.output_names = tuple(self._space.names[index] for index in self._kept)
        self.recorded = Recorded(self._tensors(value), leaves)
        self.outputs: Tensors = tuple(each.detach() for each in self.recorded.outputs)
        self.x = pack(points).clone()
        self.y = pack(self.outputs).clone()

    @property
    def roundoff(self) -> float:
        """The unit roundoff of the coarsest dtype among inputs and outputs."""
        return max(torch.finfo(each.dtype).eps for each in (*self.points, *self.outputs))

    @property
    def columns(self) -> dict[str, slice]:
        """Where each input stands in x."""
        return _slices(self.names, self.points)

    @property
    def rows(self) -> dict[str, slice]:
        """Where each output stands in y."""
        return _slices(self.output_names, self.outputs)

    @cached_property
    def natural(self) -> Tensor:
        """The size of each entry of y, and at least the mean size of the largest output."""
        size = self.y.abs().nan_to_num_(0.0, 0.0, 0.0)
        means = [float(size[where].mean()) for where in self.rows.values() if where.start < where.stop]
        return size.add_(max(means, default=0.0))

    def __call__(self, x: Tensor) -> Tensor:
        """The value at another point; NaN where f refuses it, as beyond the edge of its domain."""
        try:
            return pack(self.evaluate(unpack(x, self.points)))
        except Exception:  # whatever f raises there
            return torch.full_like(self.y, math.nan)

    def complex(self, x: Tensor) -> Tensor:
        """f, which takes real tensors, at a complex point."""
        parts = torch.split(x, [point.numel() for point in self.points])
        with torch.no_grad():
            value = self.call([part.reshape(point.shape) for part, point in zip(parts, self.points, strict=True)])
        return torch.cat([part.detach().flatten() for part in self._tensors(value)])

    def evaluate(self, points: Sequence[Tensor]) -> Tensors:
        """The outputs for tensors like the inputs; without a graph, unless f itself needs one."""
        if not self._grad_inside:
            try:
                with torch.no_grad():
                    return tuple(each.detach() for each in self._tensors(self.call(points)))
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                self._grad_inside = True
        with torch.enable_grad():
            given = [point.detach().requires_grad_() for point in points]
            return tuple(each.detach() for each in self._tensors(self.call(given)))

    def record(self, points: Sequence[Tensor] | None = None) -> Recorded:
        """The outputs for tensors like the inputs, with their graph."""
        value, leaves = self._with_graph(self.points if points is None else points)
        return Recorded(self._tensors(value), leaves)

    def _with_graph(self, points: Sequence[Tensor]) -> tuple[Any, Tensors]:
        leaves = tuple(point.detach().clone().requires_grad_() for point in points)
        with torch.enable_grad():
            # A function may write on what it is given, which leaves do not allow.
            return self.call([leaf.clone() for leaf in leaves]), leaves

    def pull(self, u: Tensor, recorded: Recorded) -> Tensor:
        """``uᵀJ``."""
        return pack(
            [
                torch.zeros_like(like) if part is None else _strided(part)
                for part, like in zip(recorded.pull(unpack(u, self.outputs)), self.points, strict=True)
            ]
        )

    def push(self, v: Tensor, points: Sequence[Tensor] | None = None) -> Tensor:
        """``Jv`` by forward mode.

        Raises:
            Exception: An operation has no forward derivative.
        """
        points = self.points if points is None else points
        with torch.set_grad_enabled(self._grad_inside), forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(  # type: ignore[no-untyped-call]
                    point.detach().clone().requires_grad_(self._grad_inside), tangent
                )
                for point, tangent in zip(points, unpack(v, self.points), strict=True)
            ]
            outputs = self._tensors(self.call(duals))
            results = [forward_ad.unpack_dual(each) for each in outputs]  # type: ignore[no-untyped-call]
            return pack(
                [torch.zeros_like(each.primal) if each.tangent is None else each.tangent.detach() for each in results]
            )

    def _tensors(self, value: Any) -> Tensors:
        found = self._space.flatten(value)
        return tuple(_strided(found[index]) for index in self._kept)


def gradient_of(function: Function, u: Tensor) -> Function:
    """``uᵀJ`` as a function of the inputs and of u: its derivatives are the second ones."""
    count = len(function.points)
    seeds = unpack(u, function.outputs)

    def call(points: Sequence[Tensor]) -> dict[str, Tensor]:
        with torch.enable_grad():
            leaves = [point.requires_grad_() for point in points]
            outputs = function._tensors(function.call([leaf.clone() for leaf in leaves[:count]]))
            live = [(o, s) for o, s in zip(outputs, leaves[count:], strict=True) if o.requires_grad]
            found: Sequence[Tensor | None] = [None] * count
            if live:
                found = torch.autograd.grad(
                    [o for o, _ in live], leaves[:count], [s for _, s in live], create_graph=True, allow_unused=True
                )
        filled = [torch.zeros_like(p) if g is None else g for g, p in zip(found, leaves, strict=False)]
        return dict(zip(function.names, filled, strict=True))

    names = (*function.names, *(f"the seed of {name}" for name in function.output_names))
    return Function(call, (*function.points, *seeds), names, title=GRADIENT)


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one real vector in float64."""
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    device = tensors[0].device
    flat = [part.detach().flatten().to(device=device, dtype=torch.float64) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def unpack(vector: Tensor, like: Sequence[Tensor]) -> Tensors:
    """A real vector as tensors of these shapes, dtypes and devices; they may share its memory."""
    found = []
    for part, tensor in zip(torch.split(vector, _sizes(like)), like, strict=True):
        if tensor.is_complex():
            value = torch.view_as_complex(part.reshape(*tensor.shape, 2).contiguous())
        else:
            value = part.reshape(tensor.shape)
        found.append(value.to(device=tensor.device, dtype=tensor.dtype))
    return tuple(found)


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in tensors]


def _slices(names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, slice]:
    found, offset = {}, 0
    for name, size in zip(names, _sizes(tensors), strict=True):
        found[name] = slice(offset, offset + size)
        offset += size
    return found


def _strided(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _apart(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _returned(value: Any) -> str:
    leaves = pytree.tree_leaves(value)
    kinds = [f"a tensor of {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves[:4]]
    return ", ".join(kinds) or type(value).__name__


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Inside: an exception of the user's function gets a note that says who called it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by f, {what}")
        raise
