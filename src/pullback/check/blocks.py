"""Why projections disagree: which output by which input, which entries, and the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.check.differences import Derivative
from pullback.check.evidence import Cause, Evidence
from pullback.check.projections import REVERSE, Projector, compare, judge, only, weighted
from pullback.check.registries import causes
from pullback.check.report import Entry, Finding

# A block is looked at entry by entry if it has no more entries, and no longer side.
LARGEST_BLOCK, LONGEST_SIDE = 100_000, 2_000
# The blocks of the other inputs are computed too if they have no more entries.
LARGEST_OTHER = 4_096
# Of a larger one, so many groups of columns and of rows are followed down to single ones.
FOLLOWED = 4
SHOWN = 8
# A relative error that one float32 among float64 explains: its roundoff, a few operations long.
SINGLE = 64 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Place:
    """One input or output: its name, its tensor and where it stands in the real vector."""

    name: str
    tensor: Tensor
    where: slice

    @property
    def width(self) -> int:
        """How many real numbers one element is."""
        return 2 if self.tensor.is_complex() else 1

    def unit(self, length: int, index: int, part: int = 0) -> Tensor:
        """The real vector that is 1 at one element: at its real part, or at its imaginary part."""
        found = torch.zeros(length, dtype=torch.float64, device=self.tensor.device)
        found[self.where.start + index * self.width + part] = 1
        return found

    def index(self, flat: int) -> tuple[int, ...]:
        """The index of an element."""
        return tuple(int(each) for each in torch.unravel_index(torch.tensor(flat), self.tensor.shape))


def explain(projector: Projector) -> tuple[list[Finding], dict[str, float]]:
    """What is wrong with reverse mode, output by input, and by how much."""
    findings: list[Finding] = []
    ratios: dict[str, float] = {}
    function = projector.function
    for source in _places(function.names, function.points, function.columns):
        for sizes in projector.sizes:
            v = only(projector.direction(sizes), [source.where])
            derivative = projector.best(projector.differences(v))
            for target in _places(function.output_names, function.outputs, function.rows):
                pair = f"{target.name} by {source.name}"
                ratio = _ratio(projector, v, derivative, target)
                if ratio > 1 and ratios.get(pair, 0.0) <= 1:
                    findings += _finding(projector, v, derivative, target, source)
                ratios[pair] = max(ratios.get(pair, 0.0), ratio)
    return findings, ratios


def explain_forward(projector: Projector, explained: set[tuple[str, str]]) -> list[Finding]:
    """Where forward mode disagrees with differences, other than in the outputs and inputs explained already."""
    function, findings, seen = projector.function, [], set(explained)
    for source in _places(function.names, function.points, function.columns):
        for sizes in projector.sizes:
            v = only(projector.direction(sizes), [source.where])
            pushed, derivative = projector.push(v), projector.best(projector.differences(v))
            if pushed is None:
                continue
            u = weighted(function, projector.random_seed(), derivative)
            moved = projector.moved_forward(v, pushed)
            allowed = moved + projector.tolerance.of_entries(
                pushed, derivative.value, derivative.allowed, v, function.natural
            )
            wrong = ~((pushed - derivative.value).abs() <= allowed) & (u != 0)
            for target in _places(function.output_names, function.outputs, function.rows):
                pair = (target.name, source.name)
                if bool(wrong[target.where].any()) and pair not in seen:
                    seen.add(pair)
                    findings.append(_of_forward(target, source, wrong, pushed, derivative))
    return findings


def _of_forward(target: Place, source: Place, wrong: Tensor, pushed: Tensor, derivative: Derivative) -> Finding:
    places = wrong[target.where].nonzero().flatten()
    apart = (pushed - derivative.value)[target.where][places].abs()
    worst = int(places[apart.nan_to_num(math.inf).argmax()])
    ours, numeric = (float(each[target.where][worst]) for each in (pushed, derivative.value))
    single = _in_single_precision(float((apart / derivative.value[target.where][places].abs()).max()))
    return Finding(
        f"forward mode: {single.name}" if single else "forward mode is wrong",
        f"{len(places)} of {target.tensor.numel()} entries of Jv disagree with differences along a random v; "
        f"at {list(target.index(worst // target.width))} forward mode gives {ours:.6g} and differences {numeric:.6g}"
        + (f"; {single.text}" if single else ""),
        "correct jvp() of the Function, or the forward formula of the operation; reverse mode is judged by itself",
        harmless=single is not None,
        input=source.name,
        output=target.name,
    )


def _places(names: Sequence[str], tensors: Sequence[Tensor], slices: dict[str, slice]) -> list[Place]:
    return [Place(name, tensor, slices[name]) for name, tensor in zip(names, tensors, strict=True)]


def _ratio(projector: Projector, v: Tensor, derivative: Derivative, target: Place) -> float:
    """The disagreement of one output by one input, conditioning considered."""
    return judge(projector, projector.random_seed(), v, None, derivative, [target.where]).get(REVERSE, 0.0)


def _finding(projector: Projector, v: Tensor, derivative: Derivative, target: Place, source: Place) -> list[Finding]:
    """The entries of a block that disagree and their cause; nothing where every entry agrees after all."""
    m, n = target.tensor.numel(), source.tensor.numel()
    if m * n <= LARGEST_BLOCK and max(m, n) <= LONGEST_SIDE:
        rows, columns = list(range(m)), list(range(n))
    else:
        rows, columns = _search(projector, v, derivative, target, source)
    block = Block(projector, target, source, rows, columns)
    for part in range(target.width):
        evidence = block.evidence(part)
        entries = _wrong_entries(evidence, block)
        if entries:
            cause = _inexact(entries) or _cause(replace(evidence, others=_others(block, part)))
            return [_told(evidence, entries, cause)]
    if rows == list(range(m)) and columns == list(range(n)):
        return []
    text = f"a random projection of {target.name} by {source.name} disagrees; no single entry stands out"
    fix = "check the backward of this function at a smaller size"
    return [Finding("wrong gradient", text, fix, input=source.name, output=target.name)]


def _others(block: Block, part: int) -> tuple[Evidence, ...]:
    """The blocks of the same output by the other inputs of the same shape, if they are small."""
    function, source = block.projector.function, block.source
    if not block.whole or len(block.rows) * len(block.columns) > LARGEST_OTHER:
        return ()
    return tuple(
        Block(block.projector, block.target, place, block.rows, block.columns).evidence(part)
        for place in _places(function.names, function.points, function.columns)
        if place.name != source.name and place.tensor.shape == source.tensor.shape
    )


def _cause(evidence: Evidence) -> Cause | None:
    return next((found for recognise in causes() if (found := recognise(evidence)) is not None), None)


def _inexact(entries: list[Entry]) -> Cause | None:
    """Right to single precision: a constant or an operation on the way is a float32."""
    errors = [abs(entry.ours - entry.numeric) / abs(entry.numeric or entry.ours) for entry in entries]
    return _in_single_precision(max(errors))


def _in_single_precision(relative: float) -> Cause | None:
    if not relative <= SINGLE:
        return None
    text = f"right to {-math.log10(relative):.0f} digits: something on the way is computed in single precision"
    return Cause("single precision", text, "look for a cast or a constant in float32", harmless=True)


def _told(evidence: Evidence, entries: list[Entry], cause: Cause | None) -> Finding:
    count = f"{len(entries)} of {evidence.ours.numel()} entries looked at disagree"
    shown = tuple(entries[:SHOWN])
    if cause is not None:
        text = f"{cause.text} ({count})"
        return Finding(cause.name, text, cause.fix, cause.harmless, evidence.input, evidence.output, shown)
    fix = f"derive d {evidence.output} / d {evidence.input} again; the entries above say where backward() is off"
    text = f"reverse mode disagrees with differences: {count}"
    return Finding("wrong gradient", text, fix, False, evidence.input, evidence.output, shown)


class Block:
    """Rows and columns of one output by one input: by reverse mode, and by differences.

    Args:
        projector: The function, the tolerance and the ways.
        target: The output.
        source: The input.
        rows: The output's elements.
        columns: The input's elements.
    """

    def __init__(
        self, projector: Projector, target: Place, source: Place, rows: Sequence[int], columns: Sequence[int]
    ) -> None:
        self.projector, self.target, self.source = projector, target, source
        self.rows, self.columns = rows, columns
        self.whole = len(rows) == target.tensor.numel() and len(columns) == source.tensor.numel()
        self._columns: list[list[Derivative]] | None = None

    def evidence(self, part: int) -> Evidence:
        """What is known of the block; of an imaginary output's real parts, or of its imaginary ones.

        An entry is torch's gradient for a seed of 1 (or 1j) at one element: for a complex input its real part says
        how the output moves with the input's real part, and its imaginary part with the imaginary one.
        """
        numeric, error = self._numeric(part)
        return Evidence(
            input=self.source.name if self.whole else f"part of {self.source.name}",
            output=self.target.name if self.whole else f"part of {self.target.name}",
            input_shape=tuple(self.source.tensor.shape) if self.whole else (len(self.columns),),
            output_shape=tuple(self.target.tensor.shape) if self.whole else (len(self.rows),),
            ours=self._ours(part, fresh=True),
            numeric=numeric,
            error=error,
            at=self._elements(self.source.tensor, self.columns),
            value=self._elements(self.target.tensor, self.rows),
            f=self._moved,
            rerun=lambda: self._ours(part, fresh=False),
        )

    @property
    def natural(self) -> Tensor:
        """The natural size of each entry: of the output's, by that of the input's."""
        y, x = self.projector.function.natural[self.target.where], self.projector.sizes[0][self.source.where]
        y, x = y.reshape(-1, self.target.width).sum(1), x.reshape(-1, self.source.width).sum(1)
        return y[torch.as_tensor(self.rows)][:, None] / x[torch.as_tensor(self.columns)]

    def _elements(self, tensor: Tensor, indices: Sequence[int]) -> Tensor:
        flat = tensor.detach().flatten()[torch.as_tensor(indices, device=tensor.device)]
        return flat.to(torch.complex128 if tensor.is_complex() else torch.float64)

    def _moved(self, at: Tensor) -> Tensor:
        function = self.projector.function
        points = list(function.points)
        place = function.names.index(self.source.name)
        moved = points[place].detach().clone().flatten()
        moved[torch.as_tensor(self.columns, device=moved.device)] = at.detach().to(moved)
        points[place] = moved.reshape(points[place].shape)
        given = [point if index == place else point.clone() for index, point in enumerate(points)]
        outputs = function.evaluate(given)
        return self._elements(outputs[function.output_names.index(self.target.name)], self.rows)

    def _ours(self, part: int, *, fresh: bool) -> Tensor:
        """Rows by reverse mode: each from a graph of its own, or all from one."""
        function = self.projector.function
        recorded = function.record()
        found = []
        for row in self.rows:
            recorded = function.record() if fresh else recorded
            u = self.target.unit(function.y.numel(), row, part)
            pulled = function.pull(u, recorded)[self.source.where]
            found.append(self._as_elements(pulled)[torch.as_tensor(self.columns, device=pulled.device)])
        return torch.stack(found)

    def _as_elements(self, vector: Tensor) -> Tensor:
        return torch.view_as_complex(vector.reshape(-1, 2)) if self.source.width == 2 else vector

    def _numeric(self, part: int) -> tuple[Tensor, Tensor]:
        if self._columns is None:
            self._columns = [[self._slope(j, turn) for turn in range(self.source.width)] for j in self.columns]
        chosen = torch.as_tensor(self.rows, device=self.projector.function.y.device) * self.target.width + part
        values, errors = [], []
        for slopes in self._columns:
            parts = [torch.where(s.error.isfinite(), s.value, math.nan)[self.target.where][chosen] for s in slopes]
            values.append(torch.complex(*parts) if len(parts) == 2 else parts[0])
            errors.append(torch.stack([s.allowed[self.target.where][chosen] for s in slopes]).amax(0))
        return torch.stack(values, dim=1), torch.stack(errors, dim=1)

    def _slope(self, column: int, turn: int) -> Derivative:
        function = self.projector.function
        size = float(self.projector.sizes[0][self.source.where][column * self.source.width + turn])
        unit = self.source.unit(function.x.numel(), column, turn).to(function.x.device)
        differences = self.projector.differences(unit * size)
        found = differences.quick()
        if bool((found.error > self.projector.tolerance.wanted * found.value.abs())[self.target.where].any()):
            found = differences.thorough()
        kink = None if found.kink is None else found.kink / size
        return Derivative(found.value / size, found.error / size, found.way, kink)


def _wrong_entries(evidence: Evidence, block: Block) -> list[Entry]:
    """The entries that disagree, the worst first."""
    ours, numeric = evidence.ours, evidence.numeric
    known = numeric.isfinite() if not numeric.is_complex() else numeric.real.isfinite() & numeric.imag.isfinite()
    size = ours.abs().nan_to_num(0.0, 0.0) + numeric.abs().nan_to_num(0.0, 0.0)
    tolerance = block.projector.tolerance
    allowed = evidence.error + tolerance.relative * (size + size.mean() + block.natural) + tolerance.absolute
    apart = (ours - numeric).abs()
    wrong = (known & ~(apart <= allowed)).nonzero()
    order = apart[wrong[:, 0], wrong[:, 1]].nan_to_num(math.inf).argsort(descending=True)
    return [
        Entry(
            block.target.index(block.rows[i]), block.source.index(block.columns[j]), ours[i, j].item(),
            numeric[i, j].item(),
        )
        for i, j in wrong[order].tolist()
    ]  # fmt: skip


def _search(
    projector: Projector, v: Tensor, derivative: Derivative, target: Place, source: Place
) -> tuple[list[int], list[int]]:
    """Rows and columns of wrong entries in a large block, found by halving what is projected on."""
    function = projector.function
    u = only(weighted(function, projector.random_seed(), derivative), [target.where])
    pulled = function.pull(u, projector.recorded)

    def by_columns(group: range) -> float:
        part = _masked(v, source, group)
        slope = projector.differences(part).quick()
        good = torch.where(slope.error.isfinite(), u, 0.0)
        return compare(projector, good, part, pulled, None, slope)[REVERSE]

    columns = _halve(range(source.tensor.numel()), by_columns)
    rows: list[int] = []
    for column in columns:
        part = _masked(v, source, range(column, column + 1))
        slope = projector.differences(part).thorough()
        full = only(weighted(function, projector.random_seed(), slope), [target.where])

        def by_rows(group: range, full: Tensor = full, part: Tensor = part, slope: Derivative = slope) -> float:
            masked = _masked(full, target, group)
            again = function.pull(masked, projector.recorded)
            return compare(projector, masked, part, again, None, slope)[REVERSE]

        rows += _halve(range(target.tensor.numel()), by_rows)
    return sorted(set(rows))[: 2 * SHOWN] or [0], columns or [0]


def _masked(vector: Tensor, place: Place, group: range) -> Tensor:
    start = place.where.start
    return only(vector, [slice(start + group.start * place.width, start + group.stop * place.width)])


def _halve(whole: range, ratio: Callable[[range], float]) -> list[int]:
    """Single elements whose ratio is above 1, by halving the groups that have such a ratio."""
    groups = [whole]
    while groups and any(len(group) > 1 for group in groups):
        halves = [half for group in groups for half in _halves(group)]
        judged = [(ratio(half), half) for half in halves]
        kept = sorted((each for each in judged if each[0] > 1), key=lambda each: (-each[0], each[1].start))
        groups = [half for _, half in kept[:FOLLOWED]]
    return sorted(group.start for group in groups)


def _halves(group: range) -> list[range]:
    middle = group.start + len(group) // 2
    return [half for half in (range(group.start, middle), range(middle, group.stop)) if half]
