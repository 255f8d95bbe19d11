"""Guards: what a prepared Jacobian was prepared for, and whether a call is that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.closures import held_by
from pullback.autodiff.program import View
from pullback.autodiff.replay import laid_like
from pullback.errors import GuardError


@dataclass
class Guards:
    """What has to hold for a call, checked one after the other.

    Attributes:
        f: The function.
        args: The arguments that it was prepared with.
        inputs: Those among their tensors that are differentiated by: the program does not find them outside.
        captured: The tensors that the program found outside.
        literal: For each of them whether the function makes it anew each time.
        fixed: For each of them whether the program relied on its numbers.
        watched: The Views that the program's course depended on.
        lines: Where each of them decided, in words.
    """

    f: Any
    args: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    captured: tuple[Tensor, ...]
    literal: tuple[bool, ...] = ()
    fixed: tuple[bool, ...] = ()
    watched: tuple[View, ...] = ()
    expected: tuple[Tensor, ...] = ()
    lines: tuple[str, ...] = ()
    _places: tuple[int | None, ...] = field(init=False)
    _constants: dict[int, Tensor] = field(init=False)
    _values: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        leaves = pytree.tree_leaves(self.args)
        own = {id(tensor) for tensor in self.inputs}
        where = {
            id(leaf): place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and id(leaf) not in own
        }
        self._places = tuple(where.get(id(tensor)) for tensor in self.captured)
        self._constants = {k: self.captured[k].detach().clone() for k, fixed in enumerate(self.fixed) if fixed}
        self._spec = pytree.tree_structure(self.args)
        self._leaves = [_described(leaf) for leaf in leaves]
        self._values = held_by(self.f).values
        kinds = sorted({"cpu", *(tensor.device.type for tensor in self.inputs)})
        self._kinds = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
        self._around = self._surroundings()

    def _surroundings(self) -> tuple[object, ...]:
        """What torch itself lets the numbers depend on: autocast and the default dtype."""
        cast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in self._kinds if torch.is_autocast_enabled(kind))
        return torch.get_default_dtype(), cast

    @property
    def unseen(self) -> list[Tensor]:
        """Captured tensors that cannot be found again, or in two ways, from the function and its arguments."""
        held = {id(tensor) for tensor in held_by(self.f).tensors}
        return [
            tensor
            for tensor, place, literal in zip(self.captured, self._places, self.literal, strict=True)
            if not literal and (place is None) == (id(tensor) not in held)
        ]

    def admit(self, args: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], bool]:
        """Check the arguments of a call and what the function holds.

        Returns:
            The captured tensors at this call; and whether plain values that the function holds have changed, which
            may or may not matter.

        Raises:
            GuardError: Something differs that was relied on.
        """
        leaves, spec = pytree.tree_flatten(args)
        alike = spec == self._spec and self._surroundings() == self._around
        if not alike or not all(map(_equal, map(_described, leaves), self._leaves)):
            raise _refused(self._told(leaves, same=spec == self._spec))
        held = held_by(self.f)
        ids = {id(tensor) for tensor in held.tensors}
        there = all(
            place is not None or literal or id(tensor) in ids
            for tensor, place, literal in zip(self.captured, self._places, self.literal, strict=True)
        )
        captured = tuple(
            tensor if place is None else laid_like(leaves[place], tensor.shape, tensor.stride())
            for tensor, place in zip(self.captured, self._places, strict=True)
        )
        # NumPy can write to a tensor's memory without torch counting it, so the numbers are compared.
        constant = all(same_numbers(captured[k], known) for k, known in self._constants.items())
        if not there or not constant:
            raise _refused(
                [
                    *self._told(leaves, same=True),
                    (there, "the tensors and parameters that the function holds are the same objects"),
                    (constant, "tensors that were taken as constants have the same numbers"),
                ]
            )
        return captured, not same_values(held.values, self._values)

    def _told(self, leaves: Sequence[Any], *, same: bool) -> list[tuple[bool, str]]:
        """What of the arguments and their surroundings is as it was, and what is not, in words."""
        count = len(self.args)
        checks = [(same, f"{count} argument{'s' * (count != 1)} of the same structure")]
        for k, (leaf, known) in enumerate(zip(leaves, self._leaves, strict=True) if same else ()):
            now = _described(leaf)
            checks.append((_equal(now, known), f"argument {k}: {_words(known)}" + _got(now, known)))
        checks.append((self._surroundings() == self._around, "autocast and the default dtype are as they were"))
        return checks

    def accept_values(self) -> None:
        """The plain values that the function holds now are known to be right."""
        self._values = held_by(self.f).values

    def refuse_values(self) -> GuardError:
        """The error for plain values that have changed and matter, or that nothing may be verified with."""
        return _refused(
            [
                (True, "the arguments"),
                (True, "the tensors and parameters that the function holds are the same objects"),
                (False, "the numbers, flags and texts that the function holds are the same"),
            ]
        )

    def check_course(self, now: Sequence[Tensor]) -> None:
        """Check what the program's course depended on.

        Raises:
            GuardError: The function would take another branch here, or select other elements.
        """
        checks = [
            (same_numbers(here, then), f"{line}: {_short(then)}" + _now(here, then))
            for here, then, line in zip(now, self.expected, self.lines, strict=True)
        ]
        if not all(fine for fine, _ in checks):
            raise _refused([(True, "arguments"), (True, "what the function holds"), *checks])


def same_numbers(here: Tensor, then: Tensor) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    if here.shape != then.shape or here.dtype != then.dtype:
        return False
    return bool(torch.equal(here, then)) or bool(((here == then) | ((here != here) & (then != then))).all())


def _refused(checks: list[tuple[bool, str]]) -> GuardError:
    listed = "".join(f"\n    {'✓' if fine else '✗'} {text}" for fine, text in checks)
    return GuardError(
        "this Jacobian was prepared for something else",
        got=listed,
        fix="pb.jacobian(f, x) at this point, or pb.prepare(f, x) again",
    )


def _described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    return leaf


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(a == b)
    except Exception:  # something whose comparison is not one truth value
        return False


def _words(known: Any) -> str:
    if isinstance(known, tuple) and len(known) == 3 and isinstance(known[1], torch.dtype):
        shape, dtype, device = known
        return f"shape {shape}, {str(dtype).removeprefix('torch.')}, {device}"
    return repr(known)


def _got(now: Any, known: Any) -> str:
    return "" if _equal(now, known) else f", but got {_words(now)}"


def _short(value: Tensor) -> str:
    return f"{value.item()}" if value.numel() == 1 else f"{tuple(value.shape)} selected elements"


def _now(here: Tensor, then: Tensor) -> str:
    if same_numbers(here, then):
        return ""
    return f" then, {_short(here)} now" if then.numel() == 1 else " then, others now"


def same_values(now: list[Any], then: list[Any]) -> bool:
    """Whether two lists of plain values are equal; NaN equals NaN."""
    return len(now) == len(then) and all(a == b or (a != a and b != b) for a, b in zip(now, then, strict=True))
