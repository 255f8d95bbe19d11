"""Verification: the one plain reverse pass that a Jacobian built any other way is held against.

Batching rules and forward formulas can be wrong without a word. For a random seed ``u``, a plain reverse pass
gives ``uᵀJ`` by the code that every ``.backward()`` of the world exercises; the same seed times the J that was
built must give the same. That costs one pass and exposes a wrong rule with probability one.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.linearize import Linearization, Tensors
from pullback.data.space import Leaf, Space

# The tolerance is SLACK * roundoff^(2/3): 1e-9 in float64, 7e-4 in float32. Over the float64 samples of PyTorch's
# operator database right formulas agree to 1e-13, and the wrong ones are off by 1e-6 or more.
SLACK = 27.0
COARSEST = 0.1
# An error of less than so many roundoffs of the natural size max|y| / max|x| is rounding noise: it passes.
NOISE_ROUNDOFFS = 100.0
# Up to so many it may be: the sure way is taken, but nobody is blamed.
DOUBTFUL = 100.0
# In half precision the noise is still held below this part of the natural size.
LARGEST_NOISE = 0.05
# Entries this much smaller than the largest are held to the largest one's error.
RANGE = 1e-3

# So many rows at a time stay inside the caches.
NORM_ROWS = 64
# What takes longer than so many seconds needs no warm-up to be timed.
LONG = 2.0

# What was learned of a function, for as long as it lives.
_learned: weakref.WeakKeyDictionary[Any, dict[Hashable, dict[Hashable, Any]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Disagreement:
    """A difference between a Jacobian and a plain reverse pass.

    Attributes:
        text: Where, and how large.
        doubtful: Whether it may be rounding noise: then the sure way is taken without a warning.
    """

    text: str
    doubtful: bool

    def __str__(self) -> str:
        return self.text


@dataclass
class Verifier:
    """Holds results against one plain reverse pass of a linearization.

    Attributes:
        linearization: The point and its passes.
        active: Whether anything is verified at all.
        coarsest: The unit roundoff of the coarsest dtype on the way, where it is known to be coarser than the ends'.
    """

    linearization: Linearization
    active: bool
    coarsest: float = field(default=0.0, init=False)
    _probe: tuple[Tensors, Tensors] | None = field(default=None, init=False)
    _noise: list[float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.active = self.active and not self.linearization.transformed

    @property
    def probe(self) -> tuple[Tensors, Tensors]:
        """A random seed ``u``, and ``uᵀJ`` by a plain reverse pass."""
        if self._probe is None:
            seed = random_vector(self.linearization.rows)
            self._probe = seed, self.plain(seed)
        return self._probe

    @cached_property
    def finite(self) -> bool:
        """Whether the probe's ``uᵀJ`` is finite throughout."""
        return all(bool(part.isfinite().all()) for part in self.probe[1])

    def plain(self, seed: Tensors) -> Tensors:
        """``uᵀJ`` by a plain reverse pass, detached; its time is remembered."""
        began = time.perf_counter()
        answer = tuple(part.detach() for part in self.linearization.pull(seed))
        self.time("seconds of a plain pass", time.perf_counter() - began)
        return answer

    @cached_property
    def _memory(self) -> dict[Hashable, Any]:
        """What was learned before of the same function at the same shapes."""
        lin = self.linearization
        training = getattr(lin.problem.f, "training", None)
        key = training, lin.create_graph, lin.problem.symmetric, lin.inputs.leaves, lin.outputs.leaves
        try:
            return _learned.setdefault(lin.problem.f, {}).setdefault(key, {})
        except TypeError:  # a callable that cannot be hashed or weakly referenced
            return {}

    def recall(self, what: Hashable) -> Any:
        """What was learned before of the same function at the same shapes, or None."""
        return self._memory.get(what)

    def learn(self, what: Hashable, value: Any = 1.0) -> None:
        """Remember something of this function at these shapes."""
        self._memory[what] = value

    def time(self, what: str, seconds: float) -> None:
        """Remember the least time that something took; the first time of something short is a warm-up."""
        warm, best = f"{what}, warm", self.recall(what)
        if best is None and seconds < LONG and not self.recall(warm):
            self.learn(warm)
        else:
            self.learn(what, seconds if best is None else min(best, seconds))

    def disagreement(
        self, found: Sequence[Tensor], scale: Callable[[], Sequence[Tensor]], expected: Sequence[Tensor]
    ) -> Disagreement | None:
        """Where ``uᵀJ`` as built and as pulled differ.

        Args:
            found: ``uᵀJ`` from the J that was built, flat, one tensor for each live input.
            scale: Gives for each entry the size that its rounding error is relative to.
            expected: ``uᵀJ`` by a plain reverse pass.
        """
        if all(self._plainly_equal(have, want) for have, want in zip(found, expected, strict=True)):
            return None
        leaves = self.linearization.columns.leaves
        worst: Disagreement | None = None
        for leaf, have, size, want, noise in zip(leaves, found, scale(), expected, self.noise, strict=True):
            wrong = self.judge(have.flatten(), size.flatten(), want.flatten(), noise, f"by {leaf.name}")
            if wrong is not None and (worst is None or worst.doubtful):
                worst = wrong
        return worst

    def _plainly_equal(self, found: Tensor, expected: Tensor) -> bool:
        """Whether no error is large even beside the smallest size that counts."""
        if not expected.numel():
            return True
        want = precise(expected).flatten()
        error, largest = float((precise(found).flatten() - want).abs().max()), float(want.abs().max())
        return error <= self.tolerance * RANGE * largest and math.isfinite(largest)

    def judge(self, found: Tensor, scale: Tensor, expected: Tensor, noise: float, where: str) -> Disagreement | None:
        """Whether two tensors differ by more than rounding."""
        error = relative_error(found, scale, expected, noise)
        if error <= self.tolerance:
            return None
        doubt = noise * self._noise_part(DOUBTFUL) / self._noise_part(1.0)
        doubtful = relative_error(found, scale, expected, doubt) <= self.tolerance
        return Disagreement(f"{where}, relative error {error:.1e} where {self.tolerance:.0e} is allowed", doubtful)

    def _noise_part(self, times: float) -> float:
        """The part of the natural size that noise makes up, or may make up."""
        roundoff = roundoff_of(self.linearization.rows.leaves + self.linearization.columns.leaves)
        return min(times * NOISE_ROUNDOFFS * roundoff / self.tolerance, LARGEST_NOISE)

    @property
    def noise(self) -> list[float]:
        """For each live input the size below which a derivative is rounding noise.

        A derivative that is zero in exact arithmetic (by a bias before a BatchNorm) comes out as rounding errors
        of terms of the natural size ``max|y| / max|x|``; relative to itself its error is large, and means nothing.
        """
        if self._noise is None:
            lin = self.linearization
            values = lin.outputs.flatten(lin.value)
            largest = max((_largest(values[index]) for index in lin.live_outputs), default=0.0)
            points = lin.problem.leaves
            part = self._noise_part(1.0)
            self._noise = [part * largest / (_largest(points[index]) or 1.0) for index in lin.live_inputs]
        return self._noise

    def noise_of_derivative(self, size: float) -> float:
        """The size below which the derivative of a sum, whose terms have this size, is rounding noise."""
        largest = max((_largest(point) for point in self.linearization.problem.leaves), default=0.0)
        return self._noise_part(1.0) * size / (largest or 1.0)

    @property
    def tolerance(self) -> float:
        """The largest relative error that rounding explains, from the coarsest dtype."""
        lin = self.linearization
        return tolerance_at(max(roundoff_of(lin.rows.leaves + lin.columns.leaves), self.coarsest))


def tolerance_of(leaves: Sequence[Leaf]) -> float:
    """The largest relative error that rounding explains, from the coarsest dtype of some leaves."""
    return tolerance_at(roundoff_of(leaves))


def tolerance_at(roundoff: float) -> float:
    """The largest relative error that rounding to this unit explains."""
    return min(COARSEST, SLACK * math.pow(roundoff, 2 / 3))


def roundoff_of(leaves: Sequence[Leaf]) -> float:
    """The unit roundoff of the coarsest dtype of some leaves."""
    return max((torch.finfo(leaf.dtype).eps for leaf in leaves), default=torch.finfo(torch.float64).eps)


def relative_error(found: Tensor, scale: Tensor, expected: Tensor, noise: float = 0.0) -> float:
    """The largest error relative to its scale; infinite where a finite number was expected and not found.

    Args:
        found: What was found.
        scale: For each entry the size that its error is relative to.
        expected: What was expected; only its finite entries are compared.
        noise: The smallest size that an error is relative to.
    """
    if not expected.numel():
        return 0.0
    found, expected = precise(found), precise(expected)
    comparable = expected.isfinite()
    if bool((comparable & ~found.isfinite()).any()):
        return math.inf
    size = torch.maximum(precise(scale).abs(), expected.abs())[comparable]
    if not size.numel() or not bool(size.any()):
        return 0.0
    floor = max(float(size[size.isfinite()].max()) * RANGE, noise, 1e-300)
    error: Tensor = ((found - expected).abs()[comparable] / size.clamp(min=floor)).max()
    return float(error)


def column_norms(matrix: Tensor) -> Tensor:
    """The norms of a matrix's columns: by sums over few rows at a time, far faster than a norm along a first axis."""
    total = torch.zeros(matrix.shape[1], dtype=matrix.dtype.to_real(), device=matrix.device)
    for start in range(0, len(matrix), NORM_ROWS):
        total += matrix[start : start + NORM_ROWS].abs().square().sum(dim=0)
    return total.sqrt()


def precise(tensor: Tensor) -> Tensor:
    """A tensor in at least single precision, for sums."""
    if tensor.dtype in {torch.float16, torch.bfloat16}:
        return tensor.float()
    if tensor.dtype == torch.complex32:
        return tensor.to(torch.complex64)
    return tensor


def random_vector(space: Space, seed: int = 20_240_229) -> Tensors:
    """A random real vector, entries ``±(0.5 to 1.5)``, from a generator of its own."""
    parts = []
    for index, leaf in enumerate(space.leaves):
        device = leaf.device if leaf.device.type in {"cpu", "cuda"} else torch.device("cpu")
        generator = torch.Generator(device).manual_seed(seed + index)
        signed = torch.rand(leaf.shape, generator=generator, device=device) * 2 - 1
        parts.append((signed + 0.5 * signed.sign()).to(dtype=leaf.dtype, device=leaf.device))
    return tuple(parts)


def _largest(tensor: Tensor) -> float:
    finite = tensor.detach().abs()
    finite = finite[finite.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[float, float]:
    """``Re⟨left, right⟩`` and the 2-norm of its terms, which its rounding error is relative to."""
    total, squares = 0.0, 0.0
    for a, b in zip(left, right, strict=True):
        product = precise(a.detach()).conj() * precise(b.detach())
        terms = product.real if product.is_complex() else product
        total += float(terms.sum())
        squares += float(terms.square().sum())
    return total, math.sqrt(squares)
