"""Three ways to one number: ``⟨u, Jv⟩`` by reverse mode, by forward mode and by differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from pullback.check.differences import Derivative, Differences, complex_step
from pullback.check.function import Function, unpack
from pullback.check.tolerances import UNSETTLED, Tolerance, perturbed, roundings, settled

REVERSE, FORWARD = "reverse mode", "forward mode"
# An input whose share of a projection is smaller than this gets a projection of its own.
SMALL_SHARE = 1e-4
ROUNDS = 3
# An entry is small that is less than this part of the typical one; more than this share of such entries is many.
SMALL, FEW = 1e-3, 0.01
# Derivatives that are a smaller part of the output are noise, and not brought to size.
NOISE = 1e-10
# An output whose derivatives are smaller is not brought to size.
TINY = 1e-150


@dataclass(frozen=True)
class Comparison:
    """One way against differences, in one direction.

    Attributes:
        mode: Reverse or forward mode.
        ratio: The difference as a multiple of what is allowed.
        inputs: The inputs that the direction moves.
        settled: Which share of the outputs' entries the differences settled at.
        kinks: Which share of the outputs' entries is at a kink.
    """

    mode: str
    ratio: float
    inputs: tuple[str, ...]
    settled: float
    kinks: float = 0.0


@dataclass
class Examined:
    """What the projections of one function say.

    Attributes:
        comparisons: All of them.
        no_forward: Why there is no forward mode; empty where there is.
        ways: How the differences were found.
        not_finite: For each input, how many entries of the gradient are not finite where f has no derivative either.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    no_forward: str = ""
    ways: list[str] = field(default_factory=list)
    not_finite: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> list[Comparison]:
        """Those beyond what is allowed."""
        return [each for each in self.comparisons if not each.ratio <= 1]

    def worst(self, mode: str) -> float:
        """The largest ratio of a mode."""
        return max((each.ratio for each in self.comparisons if each.mode == mode), default=0.0)


class Projector:
    """Draws directions and seeds, and compares the ways.

    Args:
        function: The function.
        tolerance: What is allowed.
        generator: For directions and seeds.
    """

    def __init__(self, function: Function, tolerance: Tolerance, generator: torch.Generator) -> None:
        self.function, self.tolerance, self.generator = function, tolerance, generator
        self.recorded = function.recorded
        self.no_forward = ""
        self.real = not any(each.is_complex() for each in (*function.points, *function.outputs))

    def random_seed(self) -> Tensor:
        """A Gaussian seed."""
        y = self.function.y
        return torch.randn(y.shape, generator=self.generator, dtype=torch.float64).to(y.device)

    def direction(self, sizes: Tensor) -> Tensor:
        """A random direction with entries ±(0.5 to 1.5) of these sizes."""
        signed = torch.rand(sizes.shape, generator=self.generator, dtype=torch.float64).to(sizes.device)
        signed = signed.mul_(2).sub_(1)
        return signed.add_(signed.sign(), alpha=0.5).mul_(sizes)

    @cached_property
    def sizes(self) -> list[Tensor]:
        """What steps are relative to: each entry's own size; if many entries are small, the typical size too."""
        own, typical = self.function.x.abs(), torch.empty_like(self.function.x)
        for where in self.function.columns.values():
            typical[where] = _typical(own[where])
        if not bool(own.sum().isfinite()):
            own = torch.where(own.isfinite(), own, typical)
        share = float((own < SMALL * typical).double().mean()) if own.numel() else 0.0
        own = torch.where(own == 0, typical, own)
        return [own, typical] if share > FEW else [own]

    def differences(self, v: Tensor) -> Differences:
        """Differences in a direction."""
        function = self.function
        return Differences(function, function.x, v, roundoff=self.tolerance.roundoff, at=function.y)

    def push(self, v: Tensor) -> Tensor | None:
        """``Jv`` by forward mode; None, and the reason kept, where there is none."""
        if self.no_forward:
            return None
        try:
            return self.function.push(v)
        except Exception as error:  # whatever an operation without a forward formula raises
            self.no_forward = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            return None

    def best(self, differences: Differences) -> Derivative:
        """The derivative by all means: all steps, and the complex step where it can be trusted."""
        found = differences.thorough()
        if self.real and self.tolerance.roundoff == torch.finfo(torch.float64).eps:
            return complex_step(self.function.complex, differences.x, differences.v, found) or found
        return found

    def moved(self, u: Tensor, v: Tensor, pulled: Tensor) -> float:
        """``κ |r(perturbed) - r|``: how far rounding can move a reverse pass."""
        function, eps = self.function, self.tolerance.roundoff
        x = perturbed(function.x, eps, self.generator)
        recorded = function.record(unpack(x, function.points))
        other = function.pull(perturbed(u, eps, self.generator), recorded)
        finite = (other - pulled).isfinite()
        apart = (((other - pulled) * v)[finite]).abs().sum()
        return float(apart) * roundings(self.recorded.operations, max(function.x.numel(), function.y.numel()))

    def moved_forward(self, v: Tensor, pushed: Tensor) -> Tensor:
        """The same for forward mode, for each entry."""
        function, eps = self.function, self.tolerance.roundoff
        x = perturbed(function.x, eps, self.generator)
        other = function.push(perturbed(v, eps, self.generator), unpack(x, function.points))
        count = roundings(self.recorded.operations, max(function.x.numel(), function.y.numel()))
        apart: Tensor = (other - pushed).abs() * count
        # One draw may leave an entry where it is by chance: it is held to the mean.
        return torch.nan_to_num(torch.maximum(apart, apart[apart.isfinite()].mean()), nan=0.0)


def examine(projector: Projector) -> Examined:
    """Compare the ways in a few random directions."""
    found = Examined()
    if not projector.function.x.numel() or not projector.function.y.numel():
        return found
    for sizes in projector.sizes:
        _examine_direction(projector, projector.direction(sizes), found, ROUNDS)
    found.no_forward = projector.no_forward
    return found


def _examine_direction(
    projector: Projector, v: Tensor, found: Examined, rounds: int, blind: Tensor | None = None
) -> None:
    function = projector.function
    moves = tuple(name for name, where in function.columns.items() if bool(v[where].any()))
    differences = projector.differences(v)
    pushed = projector.push(v)
    # What is small beside the output is not told by half of the digits.
    derivative = differences.simple(function.natural) if rounds == ROUNDS else differences.quick()
    u = weighted(function, projector.random_seed(), derivative)
    pulled = function.pull(u, projector.recorded)
    if not bool(pulled.sum().isfinite()) and not bool(pulled[v != 0].isfinite().all()):
        _examine_not_finite(projector, v, pulled, pushed, found, rounds)
        return
    if pushed is not None and blind is not None:
        pushed = torch.where(blind, derivative.value, pushed)
    ratios = compare(projector, u, v, pulled, pushed, derivative)
    if not all(ratio <= 1 for ratio in ratios.values()):
        derivative = differences.quick()
        ratios = compare(projector, u, v, pulled, pushed, derivative)
    kinks = 0.0
    if not all(ratio <= 1 for ratio in ratios.values()) or not _is_exact(projector, u, derivative):
        derivative = projector.best(differences)
        if pushed is not None and blind is not None:
            pushed = torch.where(blind, derivative.value, pushed)
        ratios = judge(projector, u, v, pushed, derivative)
        kinks = float((derivative.kink > 0).double().mean()) if derivative.kink is not None else 0.0
    share = float(settled(derivative.value, derivative.error, function.y).double().mean())
    found.comparisons += [Comparison(mode, ratio, moves, share, kinks) for mode, ratio in ratios.items()]
    if derivative.way not in found.ways:
        found.ways.append(derivative.way)
    small = _small(function, v, pulled)
    if small and rounds and len(small) < len(moves):
        _examine_direction(projector, only(v, [function.columns[name] for name in small]), found, rounds - 1)


def _examine_not_finite(
    projector: Projector, v: Tensor, pulled: Tensor, pushed: Tensor | None, found: Examined, rounds: int
) -> None:
    """Where the gradient is not finite, f must have no derivative; elsewhere all is as ever."""
    function = projector.function
    bad = ~pulled.isfinite() & (v != 0)
    derivative = projector.best(projector.differences(torch.where(bad, v, 0.0)))
    u = weighted(function, projector.random_seed(), derivative)
    if bool(u.any() and function.y.isfinite().all()) and not bool(
        function.pull(u, projector.recorded)[bad].isfinite().all()
    ):
        moves = tuple(name for name, where in function.columns.items() if bool(bad[where].any()))
        found.comparisons.append(Comparison(REVERSE, math.inf, moves, 1.0))
    for name, where in function.columns.items():
        if count := int(bad[where].sum()):
            found.not_finite[name] = max(found.not_finite.get(name, 0), count)
    rest = torch.where(bad, 0.0, v)
    if bool(rest.any()) and rounds:
        # There a tangent of 0 times an infinite derivative is NaN.
        blind = None if pushed is None else ~pushed.isfinite()
        _examine_direction(projector, rest, found, rounds - 1, blind)


def compare(
    projector: Projector,
    u: Tensor,
    v: Tensor,
    pulled: Tensor,
    pushed: Tensor | None,
    derivative: Derivative,
    moved: float = 0.0,
    moved_forward: Tensor | float = 0.0,
) -> dict[str, float]:
    """By how much each mode differs from differences, in multiples of what is allowed."""
    tolerance, natural = projector.tolerance, projector.function.natural
    used = u != 0
    moving = torch.where(v == 0, 0.0, pulled)
    by_reverse, by_differences = float(moving @ v), float(u @ derivative.value)
    allowed = tolerance.of_projection(u, moving, v, derivative.value, derivative.allowed, natural)
    found = {REVERSE: _ratio(abs(by_reverse - by_differences), allowed + moved)}
    if pushed is not None:
        entries = tolerance.of_entries(pushed, derivative.value, derivative.allowed, v, natural) + moved_forward
        apart = torch.where(used, (pushed - derivative.value).abs_(), 0.0)
        found[FORWARD] = _worst(apart, entries)
    return found


def _worst(apart: Tensor, allowed: Tensor) -> float:
    """The largest ratio of what is apart to what is allowed; 0 where nothing is apart."""
    ratio = torch.where(apart == 0, 0.0, apart / allowed)
    return float(ratio.nan_to_num(math.inf, math.inf).max()) if ratio.numel() else 0.0


def _ratio(apart: float, allowed: float) -> float:
    if apart == 0:
        return 0.0
    return apart / allowed if allowed > 0 and math.isfinite(apart) else math.inf


def judge(
    projector: Projector,
    u: Tensor,
    v: Tensor,
    pushed: Tensor | None,
    derivative: Derivative,
    rows: Sequence[slice] = (),
) -> dict[str, float]:
    """The ratios of all modes, conditioning considered: where f is smooth, and by themselves where it has kinks.

    Args:
        projector: The function.
        u: A seed.
        v: The direction.
        pushed: ``Jv`` by forward mode.
        derivative: ``Jv`` by differences.
        rows: The outputs that are looked at; all, if empty.
    """
    found: dict[str, float] = {}
    for seed in (weighted(projector.function, u, derivative), at_kinks(u, derivative)):
        seed = only(seed, rows) if rows else seed
        if not bool(seed.any()):
            continue
        pulled = projector.function.pull(seed, projector.recorded)
        ratios = compare(projector, seed, v, pulled, pushed, derivative)
        if not all(ratio <= 1 for ratio in ratios.values()) and bool(pulled[v != 0].isfinite().all()):
            moved = projector.moved(seed, v, pulled)
            forward = 0.0 if pushed is None else projector.moved_forward(v, pushed)
            ratios = compare(projector, seed, v, pulled, pushed, derivative, moved, forward)
        found = {mode: max(ratio, found.get(mode, 0.0)) for mode, ratio in ratios.items()}
    return found


def at_kinks(u: Tensor, derivative: Derivative) -> Tensor:
    """A seed for those outputs alone that are at a kink."""
    if derivative.kink is None:
        return torch.zeros_like(u)
    known = derivative.error <= UNSETTLED * (derivative.value.abs() + derivative.kink)
    return torch.where(known & (derivative.kink > 0), u, 0.0)


def weighted(function: Function, u: Tensor, derivative: Derivative) -> Tensor:
    """A seed that gives all outputs about the same part, and none to entries where the differences have not settled."""
    weights = torch.zeros_like(u)
    for where in function.rows.values():
        value, error = derivative.value[where], derivative.error[where]
        good = settled(value, error, function.y[where])
        if derivative.kink is not None:
            good &= derivative.kink[where] == 0
        if not value.numel():
            continue
        floor = NOISE * float(function.natural[where].mean())
        size = max(float(torch.where(good, value, 0.0).norm()) / math.sqrt(value.numel()), floor)
        weights[where] = good.to(u).mul_(1 / size if size > TINY else 1.0)
    return weights.mul_(u)


def only(vector: Tensor, keep: Sequence[slice]) -> Tensor:
    """A vector with zeros outside some slices."""
    found = torch.zeros_like(vector)
    for where in keep:
        found[where] = vector[where]
    return found


def _typical(sizes: Tensor) -> float:
    """The mean of those that are not zero; 1 where there is none."""
    mean = float(sizes.sum()) / max(int(sizes.count_nonzero()), 1)
    if math.isfinite(mean):
        return mean or 1.0
    finite = sizes[sizes.isfinite() & (sizes > 0)]
    return float(finite.median()) if finite.numel() else 1.0


def _is_exact(projector: Projector, u: Tensor, derivative: Derivative) -> bool:
    """Whether the differences are exact enough to mean something, and everywhere."""
    used = u != 0
    if not bool(used.all()) and not bool((derivative.error[~used] == 0).all()):
        return False
    size = u.abs()
    error = float(size @ torch.where(used, derivative.error, 0.0))
    return error <= projector.tolerance.wanted * float(size @ derivative.value.abs().add_(projector.function.natural))


def _small(function: Function, v: Tensor, pulled: Tensor) -> list[str]:
    """The inputs whose part in ``⟨uᵀJ, v⟩`` would go unseen."""
    if len(function.columns) == 1:
        return []
    shares = {
        name: float((pulled[where] * v[where]).abs().sum())
        for name, where in function.columns.items()
        if bool(v[where].any())
    }
    largest = max(shares.values(), default=0.0)
    return [name for name, share in shares.items() if share < SMALL_SHARE * largest]
