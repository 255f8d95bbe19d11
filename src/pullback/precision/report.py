"""What a comparison of precisions found, as plain values and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from pullback.graph.replaying.steps import share
from pullback.precision.lost import Lost, is_nothing, overall
from pullback.precision.places import Where
from pullback.precision.scales import Scales
from pullback.words import columns, dtype_name

_ROWS = 12  # More gradients than this are shown by those that lost most.


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient for an input or parameter, or the seed of an output, and what it lost.

    Attributes:
        name: Of which input, parameter or output.
        shape: Its shape.
        dtype: The dtype it has in this run.
        lost: What it lost against float64.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    lost: Lost


@dataclass(frozen=True)
class Run:
    """A function and its backward pass in one dtype, against float64.

    Attributes:
        dtype: What inputs, parameters and buffers were cast to.
        lowest: The coarsest dtype of any cotangent: another where the function uses autocast.
        skipped: Why it could not be run, or empty; then there is nothing else.
        value_error: The relative error of the outputs themselves: that of the forward pass.
        gradients: What each gradient lost, at scale 1.
        seeds: What each seed lost when it became a cotangent of its output.
        places: Where a cotangent overflows, underflows or rounds away first, in the order of the backward pass.
        told: The same by what the pass itself shows, for a graph that differs from that in float64.
        scales: What loss scales do.
        notes: What else is to be known.
    """

    dtype: torch.dtype
    lowest: torch.dtype
    skipped: str = ""
    value_error: float = 0.0
    gradients: tuple[Gradient, ...] = ()
    seeds: tuple[Gradient, ...] = ()
    places: tuple[Where, ...] = ()
    told: tuple[str, ...] = ()
    scales: Scales | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the run is called."""
        lowest = "" if self.lowest is self.dtype else f", {dtype_name(self.lowest)} inside"
        return dtype_name(self.dtype) + lowest

    @property
    def error(self) -> float:
        """The root mean square of the gradients' relative errors at scale 1; inf if one overflows."""
        return overall([each.lost for each in self.gradients])

    @property
    def is_lossless(self) -> bool:
        """Whether nothing is lost but to the rounding of each number."""
        lost = [each.lost for each in (*self.gradients, *self.seeds)]
        entries = any(each.zeroed or each.overflowed for each in lost if not is_nothing(each, lost))
        return not (self.skipped or self.places or self.told or entries)

    @property
    def digits(self) -> float:
        """The digits that the worst of the gradients keeps."""
        lost = [each.lost for each in self.gradients]
        return min((each.digits for each in lost if not is_nothing(each, lost)), default=17.0)

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.name}: skipped, {self.skipped}"
        full = digits_of(self.lowest)
        lines = [
            f"{self.name}: gradient error {self.error:.2g} at scale 1, forward error {self.value_error:.2g}, "
            f"{min(self.digits, full):.1f} of {full:.1f} digits kept"
        ]
        if self.is_lossless:
            lines.append("  nothing is lost" + ("" if self.error == 0 else " but to rounding"))
        lines += [f"  {text}" for text in self._texts()]
        if not self.is_lossless:
            lines += [f"  {row}" for row in self._table()]
        if self.scales is not None:
            lines.append(f"  {self.scales}")
        return "\n".join(lines)

    def _texts(self) -> list[str]:
        seeds = [text for each in self.seeds if (text := _of_seed(each))]
        return [*seeds, *map(str, self.places), *self.told, *self.notes]

    def _table(self) -> list[str]:
        lost = [each.lost for each in self.gradients]
        ordered = sorted(self.gradients, key=lambda each: -each.lost.error)
        rows = [("gradient", "norm", "error", "digits", "to zero", "subnormal", "overflowed")]
        for each in ordered[:_ROWS]:
            one = each.lost
            if is_nothing(one, lost):
                rows.append((each.name, f"{one.norm:.2g}", "zero but for rounding", "", "", "", ""))
                continue
            shares = (share(one.zeroed), share(one.subnormal), share(one.overflowed))
            rows.append((each.name, f"{one.norm:.2g}", f"{one.error:.2g}", f"{one.digits:.1f}", *shares))
        more = len(ordered) - _ROWS
        rest = [f"and {more} more, which lost less"] if more > 0 else []
        return [*columns(rows, right=range(1, len(rows[0]))), *rest]


@dataclass(frozen=True)
class Report:
    """What each precision loses against float64; ``print`` shows it, and ``to_dict`` is for programs.

    Attributes:
        runs: One for each dtype, in the order that was asked for.
    """

    runs: tuple[Run, ...]

    def __getitem__(self, dtype: torch.dtype) -> Run:
        """The run in a dtype."""
        for run in self.runs:
            if run.dtype is dtype:
                return run
        raise KeyError(dtype)

    def __str__(self) -> str:
        return "\n\n".join(["precision of a backward pass against float64", *map(str, self.runs)])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and texts."""
        return {dtype_name(run.dtype): _of_run(run) for run in self.runs}


def digits_of(dtype: torch.dtype) -> float:
    """The decimal digits that numbers of a dtype have: those of half the distance between two neighbours."""
    return Lost(1.0, torch.finfo(dtype).eps / 2, 0.0, 0.0, 0.0).digits


def _of_seed(seed: Gradient) -> str:
    """What became of a seed as a cotangent, in a sentence; empty if all of it is there."""
    lost, dtype, held = seed.lost, dtype_name(seed.dtype), torch.finfo(seed.dtype)
    if lost.overflowed:
        return f"the seed for {seed.name} overflows in {dtype}, which ends at {held.max:.4g} ({share(lost.overflowed)})"
    if lost.zeroed:
        return f"the seed for {seed.name} underflows to zero in {dtype} ({share(lost.zeroed)})"
    if lost.subnormal:
        return f"the seed for {seed.name} is subnormal in {dtype}, and loses digits ({share(lost.subnormal)})"
    return ""


def _of_run(run: Run) -> dict[str, Any]:
    if run.skipped:
        return {"skipped": run.skipped}
    lost = [each.lost for each in run.gradients]
    scales = run.scales
    return {
        "lowest": dtype_name(run.lowest),
        "error": run.error,
        "value_error": run.value_error,
        "digits": run.digits,
        "is_lossless": run.is_lossless,
        "gradients": {each.name: {**asdict(each.lost), "digits": each.lost.digits} for each in run.gradients},
        "zero_but_for_rounding": [each.name for each in run.gradients if is_nothing(each.lost, lost)],
        "seeds": {each.name: asdict(each.lost) for each in run.seeds},
        "places": [
            {
                "kind": each.kind,
                "operation": each.operation,
                "module": each.module,
                "file": each.place.file if each.place else None,
                "line": each.place.line if each.place else None,
                "text": each.text,
            }
            for each in run.places
        ],
        "told": list(run.told),
        "scale": None
        if scales is None
        else {
            "best": scales.factor,
            "low": None if scales.low is None else 2.0**scales.low,
            "high": None if scales.high is None else 2.0**scales.high,
            "one_is_safe": scales.one_is_safe,
            "errors": {2.0**power: error for power, error in scales.errors.items()},
        },
        "notes": list(run.notes),
    }
