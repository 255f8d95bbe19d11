"""The same numbers for any layout in memory: strided, transposed, channels-last, expanded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, draws, function_class, largest_gap, name_of, said, same

Make = Callable[[Tensor], Tensor]


@behaviour("layouts of inputs")
def inputs(subject: Subject) -> Iterator[Problem]:
    """Inputs of the same values in other layouts."""
    if draws(subject):
        return  # Random numbers are drawn in the order of memory.
    points = [point.contiguous() for point in subject.wrt.values()]
    for word, make in _LAYOUTS.items():
        if all(make(point).is_contiguous() for point in points):
            continue
        yield from _compared(subject, word, make, points)
    shrunk = [point[:1] if point.dim() and point.shape[0] > 1 else point for point in points]
    if any(one.shape != point.shape for one, point in zip(shrunk, points, strict=True)):
        sizes = {id(small): point.shape for small, point in zip(shrunk, points, strict=True)}
        yield from _expanded(subject, shrunk, list(sizes.values()))


@behaviour("layouts of gradients")
def gradients(subject: Subject) -> Iterator[Problem]:
    """Incoming gradients of the same values in other layouts: that of a sum has stride 0 everywhere."""
    trial = Trial.of(subject)
    custom = trial.custom()
    if not custom:
        return
    names = ", ".join(sorted({name_of(node) for node in custom}))
    ones = [torch.ones_like(output, memory_format=torch.contiguous_format) for output in trial.outputs]
    expanded = [torch.ones((), dtype=each.dtype, device=each.device).expand(each.shape) for each in ones]
    seeds = [seed.contiguous() for seed in trial.seeds(subject)]
    for word, plain, other in (
        ("expanded (that of sum().backward() is)", ones, expanded),
        ("transposed in memory", seeds, [_transposed(seed) for seed in seeds]),
    ):
        reference = trial.pull([seed.clone() for seed in plain])
        try:
            found = trial.pull(other)
        except Exception as error:  # whatever a backward raises here, the plain gradient had passed
            yield Problem(
                "refuses a gradient that is not contiguous",
                f"the backward of {names} fails where the incoming gradient is {word}: {said(error)}",
                "grad.reshape in place of grad.view, or grad = grad.contiguous() first",
            )
            continue
        if not same(reference, found):
            yield Problem(
                "wrong for a gradient that is not contiguous",
                f"with an incoming gradient that is {word} the result of {names} differs by "
                f"{largest_gap(reference, found):.3g} from that for a contiguous copy",
                "grad = grad.contiguous() first in backward; no data_ptr, as_strided or in-place write on the gradient",
            )


def _compared(subject: Subject, word: str, make: Make, points: list[Tensor]) -> Iterator[Problem]:
    plain = Trial.of(subject, Tensor.clone, points)
    seeds = plain.seeds(subject)
    reference = (*plain.outputs, *plain.pull(seeds))
    try:
        trial = Trial.of(subject, make, points)
        found = (*trial.outputs, *trial.pull(seeds))
    except Exception as error:  # whatever it raises here, the contiguous input had passed
        yield _refused(word, error)
        return
    if not same(reference, found):
        yield _differs(word, largest_gap(reference, found), custom=bool(plain.custom()) or _is_custom(subject))


def _expanded(subject: Subject, small: list[Tensor], shapes: list[torch.Size]) -> Iterator[Problem]:
    """Inputs with stride 0 along their first dimension, against the same values written out."""
    sizes = itertools.cycle(shapes)
    try:
        plain = Trial.of(subject, lambda leaf: leaf.expand(next(sizes)).clone(), small)
        near = Trial.of(subject, lambda leaf: _nudged(leaf.expand(next(sizes))), small)
        seeds = plain.seeds(subject)
        reference = (*plain.outputs, *plain.pull(seeds))
        stable = same(reference, (*near.outputs, *near.pull(seeds)))
    except Exception:  # equal rows may be outside of the function's domain
        return
    if not stable or not all(bool(torch.isfinite(each).all()) for each in reference if each is not None):
        return  # A tie, or a singular matrix: anything may decide.
    try:
        trial = Trial.of(subject, lambda leaf: leaf.expand(next(sizes)), small)
        found = (*trial.outputs, *trial.pull(seeds))
    except Exception as error:  # whatever it raises here, the contiguous input had passed
        yield _refused("expanded", error)
        return
    if not same(reference, found):
        yield _differs("expanded", largest_gap(reference, found), custom=bool(plain.custom()) or _is_custom(subject))


def _refused(word: str, error: BaseException) -> Problem:
    return Problem(
        "refuses an input that is not contiguous",
        f"it fails for an input that is {word}: {said(error)}",
        "reshape in place of view, or x = x.contiguous() first",
        harmless=True,
    )


def _differs(word: str, gap: float, *, custom: bool) -> Problem:
    return Problem(
        "wrong for an input that is not contiguous",
        f"for an input that is {word} results differ by {gap:.3g} from those for a contiguous copy",
        "x = x.contiguous() first; no data_ptr, as_strided or flat indices on the input",
        harmless=not custom,
    )


def _nudged(x: Tensor) -> Tensor:
    """The same but for a few roundings, of another size in each element."""
    steps = torch.arange(x.numel(), dtype=x.real.dtype, device=x.device).reshape(x.shape)
    return x * (1 + 4 * torch.finfo(x.dtype).eps * (steps % 7 - 3))


def _is_custom(subject: Subject) -> bool:
    return function_class(subject) is not None


def _strided(x: Tensor) -> Tensor:
    """Every second element of a longer tensor."""
    return torch.stack([x, x.detach() + 7], -1)[..., 0] if x.dim() else x.clone()


def _transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT if x.dim() > 1 else x.clone()


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.clone()


_LAYOUTS: dict[str, Make] = {
    "strided": _strided,
    "transposed in memory": _transposed,
    "channels-last": _channels_last,
}
