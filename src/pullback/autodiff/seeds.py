"""Seeds: what a user may give as ``grad_tensors``, and the cotangent that it means.

A seed weights the elements of an output; a cotangent is the tensor that a backward pass receives: exactly of the
output's shape, dtype and device. Nothing is broadcast, and no value is lost in a cast without a word.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.data.space import one_line
from pullback.errors import ArgumentError, PullbackError, SeedError, ValueMismatch

NAMED = ("ones", "mean")


@dataclass(frozen=True)
class OneHot:
    """The seed that is one at an index of the output and zero elsewhere."""

    index: Any


@dataclass(frozen=True, eq=False)
class Weights:
    """A seed for each output by its name."""

    by_name: Mapping[str, Any]


def cotangents(outputs: Any, seed: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of a structure of outputs, and the cotangent that the seed means for each.

    Raises:
        ArgumentError: An output or a seed is of the wrong kind.
        SeedError: A seed does not fit its output.
        ValueMismatch: A name in the seed is no output's, or an output has no weight.
    """
    if isinstance(outputs, Tensor):
        return [outputs], [cotangent(outputs, seed, describe(outputs))]
    paths, spec = pytree.tree_flatten_with_path(outputs)
    tensors = [check_output(value, f"output{pytree.keystr(path)}") for path, value in paths]
    if not tensors:
        raise ArgumentError(
            "there is no output to differentiate",
            got=f"an empty {type(outputs).__name__}",
            fix="pb.backward(y)",
        )
    seeds = _one_for_each(paths, spec, seed)
    names = [f"output{pytree.keystr(path)}" for path, _ in paths]
    return tensors, [cotangent(*each) for each in zip(tensors, seeds, names, strict=True)]


def cotangent(output: Tensor, seed: Any, name: str) -> Tensor:
    """The cotangent that a seed means for one output."""
    if isinstance(seed, Tensor):
        return _from_tensor(output, seed, name)
    if seed is None:
        return _implicit(output, name)
    if isinstance(seed, str):
        return _from_name(output, seed, name)
    if isinstance(seed, int | float | complex) and not isinstance(seed, bool):
        return _from_number(output, seed, name)
    if isinstance(seed, OneHot):
        return _from_index(output, seed.index, name)
    if callable(seed):
        made = seed(output.detach())
        if callable(made) and not isinstance(made, Tensor):
            raise _not_a_seed(output, made, name)
        return cotangent(output, made, name)
    raise _not_a_seed(output, seed, name)


def checked_cast(value: Tensor, dtype: torch.dtype, *, name: str) -> Tensor:
    """A tensor in another dtype, where no value is lost but to rounding.

    Integers become floating-point numbers. A dtype without derivatives asks for no cast.

    Args:
        value: The tensor.
        dtype: The dtype that is needed.
        name: What messages call the tensor.

    Raises:
        SeedError: A finite value becomes infinite, a value that is not zero becomes zero, or an imaginary part
            is dropped.
    """
    if value.dtype == dtype or not (dtype.is_floating_point or dtype.is_complex):
        return value
    # Inside a torch.func transform the numbers cannot be looked at.
    visible = torch._C._functorch.maybe_current_level() is None and value.device.type != "meta"
    if value.is_complex() and not dtype.is_complex:
        if visible:
            _refuse(value, value.imag != 0, value.imag, f"{name} has an imaginary part that {dtype} drops",
                    "take its .real, if only the real part is meant")  # fmt: skip
        value = value.real
    cast = value.to(dtype)
    if visible and torch.promote_types(value.dtype, dtype) != dtype:
        _refuse(value, value.isfinite() & ~cast.isfinite(), value, f"{name} overflows in {dtype}",
                "scale the seed down, or compute the output in float32")  # fmt: skip
        _refuse(value, (value != 0) & (cast == 0), value, f"{name} underflows to zero in {dtype}",
                "scale the seed up (and the gradient down after), or compute the output in float32")  # fmt: skip
    return cast


def describe(output: Tensor) -> str:
    """An output in words, for want of a name: its shape and what made it."""
    made = type(output.grad_fn).__name__ if output.grad_fn is not None else None
    return f"the output of shape {tuple(output.shape)}" + (f" ({made})" if made else "")


def check_output(value: Any, name: str) -> Tensor:
    """A value that must be a tensor to be differentiated.

    Raises:
        ArgumentError: It is not.
    """
    if isinstance(value, Tensor):
        return value
    raise ArgumentError(
        f"{name} is not a tensor",
        got=f"{type(value).__name__}",
        fix="leave it out of the outputs"
        if value is None
        else "keep it a tensor: .item(), .numpy() and float() leave the graph",
    )


def _one_for_each(paths: Sequence[tuple[Any, Any]], spec: pytree.TreeSpec, seed: Any) -> list[Any]:
    """A seed for each output of a structure."""
    count = len(paths)
    names = ", ".join(f"output{pytree.keystr(path)}" for path, _ in paths)
    if isinstance(seed, Weights):
        return _by_name(paths, seed.by_name)
    if isinstance(seed, Tensor | OneHot) and not spec.is_leaf():
        raise SeedError(
            f"one seed for {count} outputs",
            got=f"{type(seed).__name__} for {names}",
            fix="give a seed for each in the same structure, or pb.seed.weights(name=...) for a dict",
        )
    if (
        seed is None
        or isinstance(seed, str | int | float | complex)
        or (callable(seed) and not isinstance(seed, dict | list | tuple))
    ):
        return [seed] * count
    try:
        return spec.flatten_up_to(seed)
    except ValueError:
        raise SeedError(
            "the seeds are not in the structure of the outputs",
            got=one_line(pytree.tree_structure(seed)),
            fix=f"give one seed for each of {names}, nested as they are",
        ) from None


def _by_name(paths: Sequence[tuple[Any, Any]], by_name: Mapping[str, Any]) -> list[Any]:
    keys: list[Any] = [getattr(path[0], "key", getattr(path[0], "name", None)) if path else None for path, _ in paths]
    known = [key for key in dict.fromkeys(keys) if isinstance(key, str)]
    if not known:
        raise SeedError(
            "weights by name need outputs with names",
            got=f"{len(paths)} outputs without names",
            fix="return a dict of outputs, or give the seeds in their structure",
        )
    for name in by_name:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ValueMismatch(
                f"no output is called {name!r}",
                got=f"outputs {', '.join(map(repr, known))}",
                fix=f"{close[0]}={by_name[name]!r}" if close else "use the outputs' own names",
            )
    missing = [key for key in keys if key not in by_name]
    if missing:
        raise ValueMismatch(
            f"output {missing[0]!r} has no weight",
            got=f"weights for {', '.join(map(repr, by_name)) or 'none'} of {', '.join(map(repr, known))}",
            fix=f"add {missing[0]}=0.0 to leave it out",
        )
    return [by_name[key] for key in keys]


def _from_tensor(output: Tensor, seed: Tensor, name: str) -> Tensor:
    if seed.shape != output.shape:
        raise SeedError(
            f"the seed for {name} has the wrong shape",
            got=f"seed {tuple(seed.shape)}, output {tuple(output.shape)}",
            fix=_reshaped(seed.shape, output.shape),
        )
    if seed.device != output.device:
        raise SeedError(
            f"the seed for {name} is on another device",
            got=f"seed on {seed.device}, output on {output.device}",
            fix=f"seed.to({str(output.device)!r})",
        )
    if seed.layout is not torch.strided and output.layout is torch.strided:
        raise SeedError(f"the seed for {name} is not a dense tensor", got=f"{seed.layout}", fix="seed.to_dense()")
    return checked_cast(seed, output.dtype, name=f"the seed for {name}")


def _implicit(output: Tensor, name: str) -> Tensor:
    if output.numel() != 1:
        size = "no elements" if not output.numel() else f"{output.numel()} elements"
        raise SeedError(
            f"{name} is not a single number, so its backward needs a seed: one weight for each element",
            got=f"shape {tuple(output.shape)}, {size}, and no seed",
            fix='"ones" for the gradient of the sum, "mean" for that of the mean, pb.seed.onehot(index) for one '
            f"element's, or a tensor of shape {tuple(output.shape)}",
        )
    if output.is_complex():
        raise SeedError(
            f"{name} is complex, so its backward needs a seed",
            got=f"{output.dtype} and no seed",
            fix="seed=1.0 for the gradient of the real part, seed=1j for that of the imaginary part, or a real "
            "output such as y.abs()",
        )
    return torch.ones_like(output, requires_grad=False)


def _from_name(output: Tensor, seed: str, name: str) -> Tensor:
    if seed not in NAMED:
        raise ValueMismatch(f"there is no such seed for {name}", got=repr(seed), fix='"ones" or "mean"')
    return _from_number(output, 1.0 if seed == "ones" or not output.numel() else 1.0 / output.numel(), name)


def _from_number(output: Tensor, seed: complex, name: str) -> Tensor:
    wide = torch.complex128 if isinstance(seed, complex) else torch.float64
    try:
        value = torch.tensor(seed, dtype=wide)
    except (OverflowError, RuntimeError):
        raise SeedError(
            f"the seed for {name} is too large", got=repr(seed), fix="a number that float64 holds"
        ) from None
    exact = checked_cast(value, output.dtype, name=f"the seed for {name}")
    return torch.full_like(output, exact.item(), requires_grad=False)


def _from_index(output: Tensor, index: Any, name: str) -> Tensor:
    hot = torch.zeros_like(output, requires_grad=False)
    try:
        hot[index] = 1
    except (IndexError, TypeError, ValueError) as error:
        raise SeedError(
            f"{name} has no element at this index",
            got=f"index {index!r} for shape {tuple(output.shape)}: {error}",
            fix=f"an index of {output.ndim} number{'s' * (output.ndim != 1)} within {tuple(output.shape)}",
        ) from None
    return hot


def _reshaped(given: torch.Size, needed: torch.Size) -> str:
    shape = ", ".join(map(str, needed)) if needed else "()"
    if given.numel() == needed.numel():
        return f"seed.reshape({shape})"
    if _expands(given, needed):
        return f"seed.expand({shape}), if every element is to have that weight"
    return f"one weight for each element of the output: a tensor of shape {tuple(needed)}, or torch.ones_like(y)"


def _expands(given: torch.Size, needed: torch.Size) -> bool:
    ends = zip(reversed(given), reversed(needed), strict=False)
    return len(given) <= len(needed) and all(a in {1, b} for a, b in ends)


def _refuse(value: Tensor, lost: Tensor, part: Tensor, what: str, fix: str) -> None:
    if bool(lost.any()):
        largest = part.abs()[lost].max().item()
        raise SeedError(
            what,
            got=f"{int(lost.sum())} of {value.numel()} entries of {value.dtype}, the largest {largest:.3g}",
            fix=fix,
        )


def _not_a_seed(output: Tensor, seed: Any, name: str) -> PullbackError:
    if isinstance(seed, bool):
        return ArgumentError(
            f"the seed for {name} is {seed}",
            got="a bool where the weights go",
            fix=f"pb.backward(y, seed, retain_graph={seed}), if that was meant",
        )
    if isinstance(seed, Weights | dict):
        return SeedError(
            f"weights by name for {name}, which has none",
            got=f"names {', '.join(map(repr, seed.by_name if isinstance(seed, Weights) else seed))}",
            fix="return a dict of outputs: pb.backward({'task_a': a, 'task_b': b}, pb.seed.weights(...))",
        )
    made = "torch.from_numpy(seed)" if type(seed).__module__ == "numpy" else "torch.tensor(seed)"
    return ArgumentError(
        f"the seed for {name} is not a tensor",
        got=f"{type(seed).__name__}",
        fix=f"{made}, of shape {tuple(output.shape)}",
    )


Seed = Tensor | complex | str | OneHot | Weights | Callable[[Tensor], Any] | Mapping[str, Any] | Sequence[Any] | None
