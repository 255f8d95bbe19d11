"""A backward pass as plain values, step by step, and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from torch import Tensor

from pullback.errors import ValueMismatch
from pullback.graph.replaying.local import Local
from pullback.graph.replaying.statistics import Statistics
from pullback.words import columns, dtype_name

Kind = Literal["nan", "inf", "zero", "explosion", "subnormal"]
Figures = tuple[Statistics | None, ...]
Values = tuple[Tensor | None, ...]

_ROWS = 60  # More steps than this are shown by their first and last.


@dataclass(frozen=True, slots=True)
class Step:
    """What one node did in a backward pass.

    Attributes:
        node: Its index in the graph.
        operation: What torch calls the node, such as ``AddmmBackward0``.
        incoming: The cotangent for each of its outputs; None where none came.
        outgoing: The cotangent for each of its arguments; None where none was passed on. Empty for a leaf.
        incoming_values: The numbers of those that are small, on the CPU; None for the others.
        outgoing_values: The same for what was passed on.
        local: The local Jacobian if both sides are small, or why there is none; None if they are not small.
        seconds: The time that the node itself took.
    """

    node: int
    operation: str
    incoming: Figures
    outgoing: Figures
    incoming_values: Values
    outgoing_values: Values
    local: Local | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Birth:
    """The first place where something is wrong with the numbers.

    Attributes:
        node: The index of the node that passed it on and had not received it.
        kind: What was born there.
        text: What happened, in a sentence; it does not name the node.
    """

    node: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Replay:
    """A backward pass, node by node, in the order in which torch's engine ran it.

    Attributes:
        steps: What each node did.
        gradients: The gradient for each leaf by the index of its node, bit for bit that of ``torch.autograd.grad``;
            None where the pass did not arrive.
        births: Where a NaN, an inf, an exact zero, an explosion or an underflow began: at most eight of each, first
            to last.
        seconds: The time of the pass with all that was measured on the way.
        labels: What each node is called in the text, by its index; empty to call it as torch does.
    """

    steps: tuple[Step, ...]
    gradients: Mapping[int, Tensor | None]
    births: tuple[Birth, ...]
    seconds: float
    labels: Sequence[str] = ()

    def __str__(self) -> str:
        names = {step.node: self._label(step) for step in self.steps}
        head = [f"backward pass: {len(self.steps)} steps, {_time(self.seconds)}"]
        head += [f"{names.get(birth.node, f'node {birth.node}')}: {birth.text}" for birth in self.births]
        rows = [_row(number, self._label(step), step) for number, step in enumerate(self.steps)]
        if len(rows) > _ROWS:
            left = len(rows) - _ROWS
            gap = ("…", f"{left:,} more; replay.step(i)", "", "", "", "")
            rows = [*rows[: _ROWS // 2], gap, *rows[-_ROWS // 2 :]]
        table = [("step", "node", "", "incoming", "outgoing", "flags"), *rows]
        return "\n".join([*head, "", *columns(table, right=(0, 1))])

    def step(self, number: int) -> str:
        """One step as text: what came in, what went out, and for small tensors ``uᵀJ`` with its numbers.

        Raises:
            ValueMismatch: There is no such step.
        """
        if not -len(self.steps) <= number < len(self.steps):
            raise ValueMismatch(
                "there is no such step", got=f"step {number} of {len(self.steps)}", fix=f"0 to {len(self.steps) - 1}"
            )
        number %= len(self.steps)
        step = self.steps[number]
        lines = [f"step {number}: {self._label(step)}, {_time(step.seconds)}"]
        lines += _described("incoming", step.incoming)
        lines += _described("outgoing", step.outgoing)
        lines += [birth.text for birth in self.births if birth.node == step.node]
        return "\n".join([*lines, *_product(step)])

    def _label(self, step: Step) -> str:
        return self.labels[step.node] if self.labels else step.operation


def flags(figures: Figures) -> str:
    """What is wrong with the numbers of cotangents, in words; empty if nothing is."""
    found = [each for each in figures if each is not None and each.numel]
    told = []
    for word, shares in (
        ("NaN", [each.nans for each in found]),
        ("inf", [each.infs for each in found]),
        ("zeros", [each.zeros for each in found]),
        ("subnormal", [each.subnormal for each in found]),
    ):
        worst = max(shares, default=0.0)
        if worst:
            told.append(f"{word} {share(worst)}")
    return ", ".join(told)


def share(part: float) -> str:
    """A share in percent; a small one is never shown as none, nor a large one as all."""
    if part in {0.0, 1.0}:
        return f"{100 * part:.0f} %"
    if part < 0.001:
        return "< 0.1 %"
    if part > 0.999:
        return "> 99.9 %"
    return f"{100 * part:.1f} %"


def _row(number: int, label: str, step: Step) -> tuple[str, ...]:
    told = flags(step.outgoing or step.incoming)
    return (str(number), str(step.node), label, _norms(step.incoming), _norms(step.outgoing), told)


def _norms(figures: Figures) -> str:
    return ", ".join("-" if each is None else f"{each.norm:.4g}" for each in figures)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _described(side: str, figures: Figures) -> list[str]:
    lines = []
    for number, each in enumerate(figures):
        if each is None:
            lines.append(f"  {side} {number}: none")
            continue
        span = "" if each.low is None else f", {each.low:.4g} to {each.high:.4g}"
        told = flags((each,))
        dtype = dtype_name(each.dtype)
        lines.append(f"  {side} {number}: {each.shape} {dtype}, norm {each.norm:.4g}{span}{', ' if told else ''}{told}")
    return lines


def _product(step: Step) -> list[str]:
    """``uᵀJ`` with its numbers, if there is a matrix to show; otherwise the numbers of what is small."""
    if step.local is None or step.local.matrix is None:
        lines = _shown("u", step.incoming_values) + _shown("v", step.outgoing_values)
        return lines + ([f"J is not shown: {step.local.note}"] if step.local else [])
    left, right = _vector(step.incoming_values), _vector(step.outgoing_values)
    widths = [each.numel() for each in step.outgoing_values if each is not None]
    cells = [[_figure(each) for each in row] for row in step.local.matrix]
    width = max(len(cell) for row in cells for cell in row)
    matrix = [_bracket([cell.rjust(width) for cell in row], widths) for row in cells]
    middle = (len(matrix) - 1) // 2
    lines = [f"{'u':^{len(left)}}   {'J':^{len(matrix[0])}}     {'uᵀJ':^{len(right)}}".rstrip()]
    for place, row in enumerate(matrix):
        here = place == middle
        lines.append(
            f"{left if here else ' ' * len(left)} {'·' if here else ' '} {row}{f'  =  {right}' if here else ''}"
        )
    return lines + ([step.local.note] if step.local.note else [])


def _shown(name: str, values: Values) -> list[str]:
    return [f"{name} = {_vector(values)}"] if values and all(each is not None for each in values) else []


def _vector(values: Values) -> str:
    """Numbers in a row; a bar between those of one tensor and the next."""
    kept = [each for each in values if each is not None]
    numbers = [_figure(number) for each in kept for number in each.reshape(-1).tolist()]
    return _bracket(numbers, [each.numel() for each in kept])


def _bracket(cells: Sequence[str], widths: Sequence[int]) -> str:
    rest = iter(cells)
    return "[ " + " | ".join("  ".join(islice(rest, width)) for width in widths) + " ]"


def _figure(number: complex) -> str:
    return f"{number:.4g}"
