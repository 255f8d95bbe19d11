"""Seeds: what a user may give as ``grad_tensors``, and the cotangent that it means.

A seed weights the elements of an output; a cotangent is the tensor that a backward pass receives: exactly of the
output's shape, dtype and device. Nothing is broadcast, and no value is lost in a cast without a word.
"""

from __future__ import annotations

import difflib
import functools
import keyword
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

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


def assign(outputs: Any, seed: Any) -> list[tuple[Tensor, Any, str]]:
    """Each tensor of a structure of outputs, with the seed that is meant for it and the name that messages use.

    Containers are walked together, so that a mistake is told at its own place. A seed that is no container holds for
    every output below it; but a tensor or an index fits one output only.

    Raises:
        ArgumentError: There is no output, or one is not a tensor.
        SeedError: There are more or fewer seeds than outputs, or one tensor for several.
        ValueMismatch: A name in the seed is no output's, or an output has no seed.
    """
    if isinstance(outputs, Tensor):
        return [(outputs, seed, describe(outputs))]
    found = list(_assign(outputs, seed, "output"))
    if not found:
        raise ArgumentError(
            "there is no output to differentiate", got=f"an empty {type(outputs).__name__}", fix="pb.backward(y)"
        )
    return found


def cotangent(output: Tensor, seed: Any, name: str) -> Tensor:
    """The cotangent that a seed means for one output: of exactly its shape, dtype and device.

    Raises:
        ArgumentError: The seed is of a kind that is no seed.
        SeedError: It does not fit the output.
        ValueMismatch: It is a name that means nothing.
    """
    if isinstance(seed, Tensor):
        return _from_tensor(output, seed, name)
    if callable(seed):
        made = seed(output.detach())
        if callable(made) and not isinstance(made, Tensor):
            raise _not_a_seed(output, made, name)
        return cotangent(output, made, name)
    if output.layout not in {torch.strided, torch.jagged}:
        raise SeedError(
            f"{name} is sparse, so only a tensor can be its seed",
            got=f"{output.layout} and the seed {seed!r}",
            fix="y.to_dense() before the backward, or a seed of the output's shape and layout",
        )
    if seed is None:
        return _implicit(output, name)
    if isinstance(seed, str):
        return _from_name(output, seed, name)
    if isinstance(seed, int | float | complex) and not isinstance(seed, bool):
        return _from_number(output, seed, name)
    if isinstance(seed, OneHot):
        return _from_index(output, seed.index, name)
    raise _not_a_seed(output, seed, name)


def checked_cast(value: Tensor, dtype: torch.dtype, *, name: str) -> Tensor:
    """A tensor in another dtype, where no value is lost but to rounding.

    Integers become floating-point numbers. A dtype without derivatives asks for no cast. Of a complex number each
    part is looked at by itself.

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
            imaginary = value.detach().imag.unsqueeze(-1)
            _refuse(imaginary, imaginary != 0, value.dtype, f"{name} has an imaginary part that {dtype} drops",
                    "take its .real, if only the real part is meant")  # fmt: skip
        value = value.real
    cast = value.to(dtype if value.is_complex() else dtype.to_real())
    if visible and _may_lose(value.dtype, cast.dtype):
        if _plainly_kept(value, cast):
            return cast.to(dtype)
        before, after = _parts(value.detach()), _parts(cast.detach())
        _refuse(before, before.isfinite() & ~after.isfinite(), value.dtype, f"{name} overflows in {dtype}",
                f"scale it down, or compute in a wider dtype than {dtype}")  # fmt: skip
        _refuse(before, (before != 0) & (after == 0), value.dtype, f"{name} underflows to zero in {dtype}",
                f"scale it up (and the result down after), or compute in a wider dtype than {dtype}")  # fmt: skip
    return cast.to(dtype)


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
    if value is None:
        fix = "leave it out of the outputs"
    elif isinstance(value, int | float | complex) or type(value).__module__ == "numpy":
        fix = "keep it a tensor: .item(), .numpy() and float() leave the graph"
    else:
        fix = "give its tensors: a tensor, or a dict or tuple of them"
    raise ArgumentError(f"{name} is not a tensor", got=type(value).__name__, fix=fix)


def _assign(output: Any, seed: Any, name: str) -> Iterator[tuple[Tensor, Any, str]]:
    members = _members(output)
    if members is None:
        yield check_output(output, name), seed, name
        return
    seeds = _seeds_of(output, list(members), seed, name)
    if seeds is None:
        _check_shared(output, seed, name)
        seeds = dict.fromkeys(members, seed)
    _check_keys(list(members), seeds, name)
    for key, (place, child) in members.items():
        yield from _assign(child, seeds[key], name + place)


def _seeds_of(output: Any, keys: list[Any], seed: Any, name: str) -> Mapping[Any, Any] | None:
    """The seeds that a container of seeds holds, by key; None for a seed that is no container."""
    if isinstance(seed, Weights):
        if keys and not all(isinstance(key, str) for key in keys):
            raise SeedError(
                "weights by name need outputs with names",
                got=f"{name}, a {type(output).__name__} of {len(keys)}",
                fix="return a dict of outputs, or give the seeds in their structure",
            )
        return seed.by_name
    if isinstance(output, tuple | list) and isinstance(seed, tuple | list):
        # A list for a tuple, and a tuple for a namedtuple, leave nothing to guess.
        return dict(zip(keys, seed, strict=True)) if len(seed) == len(keys) else dict(enumerate(seed))
    members = _members(seed)
    return None if members is None else {key: child for key, (_, child) in members.items()}


def _members(node: Any) -> dict[Any, tuple[str, Any]] | None:
    """What a container of torch's pytree holds, by key, index or attribute, and how that is written."""
    if isinstance(node, Tensor):
        return None
    paths, spec = pytree.tree_flatten_with_path(node, is_leaf=lambda each: each is not node)
    return None if spec.is_leaf() else {_key(path[0]): (pytree.keystr(path), child) for path, child in paths}


def _key(step: Any) -> Any:
    return next(getattr(step, kind) for kind in ("key", "idx", "name") if hasattr(step, kind))


def _check_shared(output: Any, seed: Any, name: str) -> None:
    """Refuse one tensor, or one index, for several outputs."""
    if not isinstance(seed, Tensor | OneHot):
        return
    names = [f"{name}{pytree.keystr(path)}" for path, _ in pytree.tree_flatten_with_path(output)[0]]
    if len(names) > 1:
        raise SeedError(
            f"one seed for {len(names)} outputs",
            got=f"{type(seed).__name__} for {', '.join(names)}",
            fix="give a seed for each in the same structure, or pb.seed.weights(name=...) for a dict",
        )


def _check_keys(known: list[Any], seeds: Mapping[Any, Any], name: str) -> None:
    """Hold the keys of the seeds against those of the outputs."""
    unknown = [key for key in seeds if key not in known]
    missing = [key for key in known if key not in seeds]
    place = "" if name == "output" else f" of {name}"
    if not unknown and not missing:
        return
    outputs = f"outputs {', '.join(map(repr, known)) or 'none'}"
    if not all(isinstance(key, str) for key in [*known, *seeds]):
        raise SeedError(
            f"the seeds{place} do not match the outputs",
            got=f"seeds {', '.join(map(repr, seeds)) or 'none'}; {outputs}",
            fix=f"one seed for each of the {len(known)}, nested as they are; 0.0 leaves an output out",
        )
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        raise ValueMismatch(
            f"no output{place} is called {unknown[0]!r}",
            got=f"a seed for {unknown[0]!r}; {outputs}",
            fix=f"did you mean {close[0]!r}?" if close else "use the outputs' own names",
        )
    weights = {**dict.fromkeys(seeds, "..."), **dict.fromkeys(missing, "0.0")}
    if all(str(key).isidentifier() and not keyword.iskeyword(str(key)) for key in weights):
        call = f"pb.seed.weights({', '.join(f'{key}={weight}' for key, weight in weights.items())})"
    else:
        call = "{" + ", ".join(f"{key!r}: {weight}" for key, weight in weights.items()) + "}"
    raise ValueMismatch(
        f"output{place} {', '.join(map(repr, missing))} has no seed",
        got=f"seeds for {', '.join(map(repr, seeds)) or 'none'}; {outputs}",
        fix=f"{call}: 0.0 leaves an output out",
    )


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
            fix='"ones", which is y.sum().backward(); "mean", which is y.mean().backward(); pb.seed.onehot(index) for '
            f"one element; or a tensor of shape {tuple(output.shape)}",
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


def _from_number(output: Tensor, seed: float | complex, name: str) -> Tensor:
    what = f"the seed for {name}"
    try:
        number: Any = seed if isinstance(seed, complex) else float(seed)
    except OverflowError:
        raise SeedError(
            f"{what} is too large", got="an int beyond float64", fix="a number that float64 holds"
        ) from None
    held = torch.finfo(output.dtype)
    if isinstance(number, complex) or (number and not held.smallest_normal <= abs(number) <= held.max):
        wide = torch.complex128 if isinstance(number, complex) else torch.float64
        number = checked_cast(torch.tensor(number, dtype=wide), output.dtype, name=what).item()
    if output.is_nested:  # which older torch cannot fill
        return torch.ones_like(output, requires_grad=False).mul_(number)
    return torch.full_like(output, number, requires_grad=False)


def _from_index(output: Tensor, index: Any, name: str) -> Tensor:
    first = "0" if output.ndim == 1 else str((0,) * output.ndim)
    got = f"index {index!r} for shape {tuple(output.shape)}"
    fix = f"a number for each axis, within {tuple(output.shape)}: pb.seed.onehot({first}) is the first element"
    hot = torch.zeros_like(output, requires_grad=False)
    if any(_adds_an_axis(part, output) for part in (index if isinstance(index, tuple) else (index,))):
        raise SeedError(f"{index} is no index of an element of {name}", got=got, fix=fix)
    try:
        chosen = hot[index].numel()
    except (IndexError, TypeError, ValueError) as error:
        raise SeedError(f"{name} has no element at this index", got=f"{got}: {error}", fix=fix) from None
    if not chosen:
        raise SeedError(f"the index selects no element of {name}", got=got, fix=fix)
    hot[index] = 1
    return hot


def _adds_an_axis(index: Any, output: Tensor) -> bool:
    """Whether a part of an index selects everything, which no index of an element does."""
    if isinstance(index, Tensor):
        return index.dtype == torch.bool and index.ndim == 0 and output.ndim > 0
    return index is None or isinstance(index, bool)


def _reshaped(given: torch.Size, needed: torch.Size) -> str:
    """What to write for a seed of another shape: the likeliest of the usual mistakes."""
    shape = ", ".join(map(str, needed)) if needed else "()"
    if not all(isinstance(size, int) for size in (*given, *needed)):  # a nested tensor's ragged axis
        return "a seed made from the output: torch.ones_like(y)"
    if given.numel() == needed.numel():
        swapped = len(given) == 2 and given == needed[::-1] and 1 not in given
        return f"seed.mT if its axes are swapped, else seed.reshape({shape})" if swapped else f"seed.reshape({shape})"
    if _expands(given, needed):
        return f"seed.expand({shape}), if every element is to have that weight"
    if needed and given[1:] == needed:
        return (
            f"seed[0] for one of the {given[0]} seeds stacked here; for a whole Jacobian, pb.jacobian_of(y, x).dense() "
            "or pb.jacobian(f, x).dense()"
        )
    return f"one weight for each element of the output: a tensor of shape {tuple(needed)}, or torch.ones_like(y)"


def _expands(given: torch.Size, needed: torch.Size) -> bool:
    ends = zip(reversed(given), reversed(needed), strict=False)
    return len(given) <= len(needed) and all(a in {1, b} for a, b in ends)


@functools.cache
def _may_lose(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a value of the source can be too large or too small for the target."""
    held = torch.finfo(target.to_real())
    if source == torch.bool:
        return False
    if not (source.is_floating_point or source.is_complex):
        return torch.iinfo(source).max > held.max
    given = torch.finfo(source.to_real())
    return given.max > held.max or given.smallest_normal * given.eps < held.smallest_normal * held.eps


def _plainly_kept(value: Tensor, cast: Tensor) -> bool:
    """Whether nothing can have been lost: a few reductions that spare most casts the exact look."""
    if value.is_complex():
        value, cast = torch.view_as_real(value.resolve_conj()), torch.view_as_real(cast.resolve_conj())
    finite = math.isfinite(cast.detach().sum(dtype=torch.float32).item())  # else a value is infinite, or only the sum
    return finite and value.count_nonzero().item() == cast.count_nonzero().item()


def _parts(value: Tensor) -> Tensor:
    """A tensor's real numbers along a last dimension: one for each entry, two where it is complex."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value.unsqueeze(-1)


def _refuse(parts: Tensor, lost: Tensor, dtype: torch.dtype, what: str, fix: str) -> None:
    """Raise if a part of any entry is lost; parts lie along the last dimension."""
    if bool(lost.any()):
        entries = lost.any(dim=-1)
        largest = parts.double()[lost].abs().max().item()  # not every integer dtype has abs
        raise SeedError(
            what,
            got=f"{int(entries.sum())} of {entries.numel()} entries of {dtype}, the largest {largest:.3g}",
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
    shape = f"of shape {tuple(output.shape)}"
    if type(seed).__module__ == "numpy":
        fix = f"torch.from_numpy(seed), {shape}" if hasattr(seed, "__len__") else "float(seed)"
    elif isinstance(seed, list | tuple) and any(isinstance(part, Tensor) for part in seed):
        fix = "seed[0] alone" if len(seed) == 1 else f"torch.stack(seed), {shape}"
    elif isinstance(seed, list | tuple):
        fix = f"torch.tensor(seed), {shape}"
    else:
        fix = f'a tensor {shape}, a number, "ones", "mean" or pb.seed.onehot(index)'
    return ArgumentError(f"the seed for {name} is not a tensor", got=type(seed).__name__, fix=fix)


Seed = Tensor | complex | str | OneHot | Weights | Callable[[Tensor], Any] | Mapping[str, Any] | Sequence[Any] | None
