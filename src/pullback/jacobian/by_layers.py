"""Products of a Jacobian with itself by layers: ``J Jᵀ``, the norms of its rows and of its columns, and ``JᵀJ``.

Where J is by parameters that examples share, they are made from what enters a layer and the cotangents that leave it,
mostly without J. What is made so is held against a plain reverse pass every time; where it cannot be made, or is wrong,
each function says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.data.space import Space
from pullback.executors.local import Route, Run, routes
from pullback.executors.memory import chunk_ranges
from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import Disagreement, Verifier, precise, relative_error
from pullback.outer.layers import Layers
from pullback.outer.products import Form, Grams, column_squares, fit_together, gram_is_less, pulled, row_norms
from pullback.outer.rows import PART, write_rows
from pullback.outer.terms import Parameter, exact
from pullback.plan import Plan
from pullback.strategies.base import Bid
from pullback.strategies.blocks import per_example
from pullback.strategies.outer import example_seeds, weights_of

# Rows of a Jacobian that are held against plain reverse passes.
CHECKED_ROWS = 2


class Wrong(Exception):
    """What was made from the layers disagrees with a plain reverse pass."""

    def __init__(self, disagreement: Disagreement) -> None:
        super().__init__(str(disagreement))
        self.disagreement = disagreement


@dataclass
class Factors:
    """A Jacobian by parameters at one point, in factors: its layers with their numbers.

    Attributes:
        passes: The passes through the point.
        layers: What its gradients are made of.
        apart: The rows by the parameters in whose gradients examples keep apart.
        plan: What was done.
        limit: The bytes that anything made on the way may take.
        grams: What makes Gram matrices.
    """

    passes: Passes
    layers: Layers
    apart: dict[int, Parameter]
    plan: Plan
    limit: int = field(init=False)
    grams: Grams = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.passes.executor.limit(self.columns.device)
        self.grams = Grams(self.limit)

    @property
    def rows(self) -> Space:
        """The Space of the live outputs."""
        return self.layers.rows

    @property
    def columns(self) -> Space:
        """The Space of the live parameters."""
        return self.layers.columns

    @property
    def dtype(self) -> torch.dtype:
        """What sums over parameters are made in."""
        found = exact(self.columns.dtype)
        for each in self.apart.values():
            found = torch.promote_types(found, each.dtype)
        return found

    @property
    def mixed(self) -> list[int]:
        """The other parameters that are not zero."""
        return [index for index in self.layers.mixed if self.layers.found.parts[index]]

    def order(self) -> Tensor:
        """For output element o of example b its row in J: ``(B, O)``."""
        first = torch.arange(self.layers.examples)[:, None]
        ones = per_example(self.rows, self.layers.lead)
        parts = [
            leaf.offset + first * one.numel + torch.arange(one.numel)
            for leaf, one in zip(self.rows.leaves, ones.leaves, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def in_rows(self, tensor: Tensor) -> Tensor:
        """What is ``(B O, ...)`` in the order of rows."""
        if len(self.rows.leaves) == 1:
            return tensor
        return torch.empty_like(tensor).index_copy_(0, self.order().flatten().to(tensor.device), tensor)

    def note(self, indices: Sequence[int], how: str) -> None:
        """Say in the plan how some parameters were treated."""
        names = [self.columns.leaves[index].name for index in indices]
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            self.plan.note(f"{', '.join(names[:6])}{more}: {how}")

    def rows_of(self, which: Sequence[int]) -> tuple[Callable[[int, int], list[Tensor]], int]:
        """What makes the rows from one number to another by some parameters, by passes; and the bytes of a row."""
        views = [self.layers.found.program.answers[index] for index in which]
        kernel: Pass = self.layers.found.kernel(tuple(view for view in views if view is not None))
        space = self.columns.restrict(which)

        def make(start: int, stop: int) -> list[Tensor]:
            seeds = lambda a, b: self.rows.onehots(range(start + a, start + b))  # noqa: E731
            found, _ = _executed(self.passes, {"reverse": kernel}, seeds, stop - start, space)
            return [part.reshape(stop - start, -1).to(self.dtype) for part in found]

        return make, sum(leaf.numel for leaf in space.leaves) * self.dtype.itemsize


T = TypeVar("T")


def _made(passes: Passes, what: str, make: Callable[[Factors], T]) -> tuple[T, Plan] | str:
    """What is made of a Jacobian's factors by the first route whose numbers are right; or why nothing is.

    Args:
        passes: The passes through the point.
        what: What it is called.
        make: Makes it; raises Wrong where it disagrees with a plain reverse pass.
    """
    lin = passes.linearization
    layers = passes.layers()
    if isinstance(layers, str):
        return layers
    if not any(layers.is_contracted(index) for index in range(len(layers.found.parts))):
        return "no gradient is a sum of outer products"
    way = layers.apart
    plan = Plan(what, (lin.outputs.size, lin.inputs.size), {})
    if not way.bases:
        try:
            return make(Factors(passes, layers, {}, plan)), plan
        except Wrong as wrong:
            if passes.owners_known:  # examples mix here, perhaps
                passes.forget_layers()
                return _made(passes, what, make)
            text = f"{what} disagrees with a plain reverse pass {wrong}"
            passes.report(text, "rows", doubtful=wrong.disagreement.doubtful)
            return "what was made by layers disagrees with a plain reverse pass"
    if way.bytes > passes.executor.limit(lin.inputs.device) // 2:
        return f"the cotangents at the layers take {way.bytes:,} bytes"
    offer = Bid("reverse", way.outputs, way.bytes, f"{layers.examples} examples, layer by layer")
    plan.offers, plan.order, plan.chosen = {"outer": offer}, ["outer"], "outer"
    ways = routes({"reverse to the layers": way.kernel()})

    def seeds(start: int, stop: int) -> tuple[Tensor, ...]:
        return example_seeds(layers.rows, layers.lead, start, stop)

    while ways:
        answers, run = passes.execute("reverse", ways, seeds, way.outputs, way.space)
        assert run.route is not None
        plan.route, plan.chunks, plan.notes = run.route.name, run.chunks, list(run.notes)
        ways = ways[ways.index(run.route) + 1 :]
        try:
            return make(Factors(passes, layers, way.parameters(answers), plan)), plan
        except Wrong as wrong:
            if passes.owners_known:  # examples mix here, perhaps
                passes.forget_layers()
                return _made(passes, what, make)
            text = f"{what} by layers ({run.route.name}) disagrees with a plain reverse pass {wrong}"
            instead = ways[0].name if ways else "rows"
            passes.report(text, instead, doubtful=wrong.disagreement.doubtful, routes=[run.route])
    return "what was made by layers disagrees with a plain reverse pass"


def _executed(
    passes: Passes, kernels: dict[str, Pass], seeds: Callable[[int, int], tuple[Tensor, ...]], total: int, space: Space
) -> tuple[tuple[Tensor, ...], Run]:
    ways: list[Route] = routes(kernels)
    return passes.execute("reverse", ways, seeds, total, space)


def _check_factors(found: Factors) -> None:
    """Raise if a random seed times the factors is anything but what a plain reverse pass gives for it."""
    verifier = found.passes.verifier
    if not verifier.active:
        return
    seed, gradient = verifier.probe
    weights = weights_of(found.rows, found.layers.lead, seed)
    for index, parameter in found.apart.items():
        have, size = pulled(parameter, weights)
        leaf, want = found.columns.leaves[index], precise(gradient[index]).flatten()
        _hold(found, have, size, want, partial(_noise_of, verifier, index), f"by {leaf.name}")
    found.plan.checked = "a random seed times the factors equals a plain reverse pass"


def _hold(found: Factors, have: Tensor, size: Tensor, want: Tensor, noise: Callable[[], float], where: str) -> None:
    """Raise if two tensors differ by more than rounding; what is noise is looked up only where it matters.

    Args:
        found: The factors.
        have: What was made.
        size: What its rounding errors are relative to.
        want: What it has to be.
        noise: The size below which it is rounding noise.
        where: What it is, for messages.
    """
    verifier = found.passes.verifier
    if have.numel() == 1 and abs(float(have) - float(want)) <= verifier.tolerance * float(size):
        return  # a number is compared without ado
    if relative_error(have, size, want) <= verifier.tolerance:
        return
    wrong = verifier.judge(have, size, want, noise(), where)
    if wrong is not None:
        raise Wrong(wrong)


def gram(passes: Passes) -> tuple[Tensor, Plan] | str:
    """``J Jᵀ`` of the live outputs, and how it was made; or why it has to be made from rows.

    Each parameter's part K is held against ``uᵀKu = |uᵀJ|²`` for a random seed u.
    """

    def make(found: Factors) -> Tensor:
        size = found.rows.size
        total = torch.zeros((size, size), dtype=found.dtype, device=found.columns.device)
        seed = torch.cat([precise(part).flatten().to(total) for part in passes.verifier.probe[0]])
        order = found.order().flatten().to(total.device)
        if found.apart:
            _add_apart(found, total, seed[order])
            if len(found.rows.leaves) > 1:
                back = order.argsort()
                total = total[back][:, back]
        _add_mixed(found, total, seed)
        if passes.verifier.active:
            found.plan.checked = "for each parameter uᵀKu equals |uᵀJ|² of a plain reverse pass"
        return total

    return _made(passes, "gram", make)


def _add_apart(found: Factors, total: Tensor, seed: Tensor) -> None:
    """Add the Gram matrices by the parameters in whose gradients examples keep apart."""
    done: dict[str, list[int]] = {}
    for index, parameter in found.apart.items():
        part, how = found.grams.gram(parameter)
        _check_gram(found, index, part, seed)
        total.add_(part.to(total))
        done.setdefault(how, []).append(index)
    for how, indices in done.items():
        found.note(indices, how)


def _check_gram(found: Factors, index: int, part: Tensor, seed: Tensor) -> None:
    """Raise if ``uᵀKu`` is anything but ``|uᵀJ|²`` for one parameter."""
    verifier = found.passes.verifier
    if not verifier.active:
        return
    seed = seed.to(part)
    leaf = found.columns.leaves[index]
    have = (seed @ (part @ seed)).reshape(1)
    size = (seed.square() @ part.diagonal()).reshape(1)
    want = precise(verifier.probe[1][index]).square().sum().reshape(1).to(have)
    _hold(found, have, size, want, lambda: verifier.noise[index] ** 2 * leaf.numel, f"by {leaf.name}")


def _add_mixed(found: Factors, total: Tensor, seed: Tensor) -> None:
    """Add the Gram matrices by the parameters in whose gradients all output elements share all positions."""
    layers, size = found.layers, found.rows.size
    short = [index for index in found.mixed if _is_short(layers, index, size)]
    way = layers.together(short)
    if short and way.bytes <= found.limit // 2:
        seeds = lambda a, b: found.rows.onehots(range(a, b))  # noqa: E731
        answers, _ = _executed(found.passes, {"reverse to the layers": way.kernel()}, seeds, size, way.space)
        for index, parameter in way.parameters(answers).items():
            part, how = found.grams.gram(parameter)
            _check_gram(found, index, part, seed)
            total.add_(part.to(total))
            found.note([index], f"{how}, one pass for each output element")
    else:
        short = []
    for index in found.mixed:
        if index not in short:
            make, each = found.rows_of([index])
            part = gram_in_parts(partial(_first, make), size, each, found.limit)
            _check_gram(found, index, part, seed)
            total.add_(part.to(total))
            found.note([index], "rows, one reverse pass for each: examples mix before they reach it")


def _is_short(layers: Layers, index: int, rows: int) -> bool:
    """Whether a parameter's gradient has so few positions that inner products over them are less work than rows."""
    parts = layers.found.parts[index]
    kinds = {"NoneType": "ones", "OneHot": "lookup", "Dense": "dense"}
    forms = [
        Form(part.place, part.positions, kinds[type(part.coefficient).__name__], part.mask is not None)
        for part in parts
    ]
    return (
        layers.is_contracted(index)
        and fit_together(forms)
        and gram_is_less(forms, layers.columns.leaves[index].numel, 1, rows)
    )


def _first(make: Callable[[int, int], list[Tensor]], start: int, stop: int) -> Tensor:
    return make(start, stop)[0]


def _noise_of(verifier: Verifier, index: int) -> float:
    return verifier.noise[index]


def gram_in_parts(make: Callable[[int, int], Tensor], rows: int, each: int, most: int) -> Tensor:
    """``J Jᵀ`` from what makes the rows of J, which take so many bytes each: all at once where they fit."""
    height = max(most // (2 * max(each, 1)), 1)
    if rows * each <= most or height >= rows:
        matrix = make(0, rows)
        return matrix @ matrix.mH
    ranges = list(chunk_ranges(rows, height))
    result: Tensor | None = None
    for k, (start, stop) in enumerate(ranges):
        upper = make(start, stop)
        for begin, end in ranges[k:]:
            block = upper @ (upper if begin == start else make(begin, end)).mH
            if result is None:
                result = torch.empty((rows, rows), dtype=block.dtype, device=block.device)
            result[start:stop, begin:end] = block
            result[begin:end, start:stop] = block.mH
    assert result is not None
    return result


def squares_of_rows(passes: Passes) -> tuple[Tensor, Plan] | str:
    """The squares of the norms of the live rows; or why they have to be made from rows."""

    def make(found: Factors) -> Tensor:
        _check_factors(found)
        total = torch.zeros(found.rows.size, dtype=found.dtype, device=found.columns.device)
        if found.apart:
            parts = [row_norms(parameter, found.limit).to(total).flatten() for parameter in found.apart.values()]
            total = found.in_rows(torch.stack(parts).sum(dim=0))
            found.note(list(found.apart), "norms of rows from its factors")
        for start, stop, blocks in _mixed_parts(found):
            total[start:stop] += torch.stack([block.square().sum(dim=1) for block in blocks]).sum(dim=0)
        _check_rows(found, total)
        return total

    return _made(passes, "row norms", make)


def _mixed_parts(found: Factors) -> Iterator[tuple[int, int, list[Tensor]]]:
    """The rows by the parameters in whose gradients examples mix, some at a time."""
    if found.mixed:
        make, each = found.rows_of(found.mixed)
        found.note(found.mixed, "rows, one reverse pass for each: examples mix before they reach it")
        for start, stop in chunk_ranges(found.rows.size, max(min(found.limit, PART) // max(each, 1), 1)):
            yield start, stop, make(start, stop)


def _check_rows(found: Factors, squares: Tensor) -> None:
    """Raise if the norms of a few rows are anything but those of plain reverse passes."""
    verifier = found.passes.verifier
    if not verifier.active:
        return
    chosen = torch.randperm(found.rows.size, generator=torch.Generator().manual_seed(5))[:CHECKED_ROWS].tolist()
    want = []
    for row in chosen:
        gradients = verifier.plain(tuple(part[0] for part in found.rows.onehots(range(row, row + 1))))
        want.append(sum(float(precise(part).square().sum()) for part in gradients))
    have, expected = squares[chosen].double().cpu(), torch.tensor(want, dtype=torch.float64)
    leaves = found.columns.leaves
    noise = lambda: sum(each**2 * leaf.numel for each, leaf in zip(verifier.noise, leaves, strict=True))  # noqa: E731
    found.plan.checked = "a random seed times the factors, and a few rows, equal plain reverse passes"
    _hold(found, have, expected, expected, noise, f"for rows {chosen}")


def squares_of_columns(passes: Passes) -> tuple[list[Tensor], Plan] | str:
    """The squares of the norms of the live columns, parameter by parameter; or why they have to be made from rows."""

    def make(found: Factors) -> list[Tensor]:
        _check_factors(found)
        result = [torch.zeros(leaf.numel, dtype=found.dtype, device=leaf.device) for leaf in found.columns.leaves]
        for index, parameter in found.apart.items():
            result[index] = column_squares(parameter, found.limit)
        found.note(list(found.apart), "norms of columns from its factors")
        for _, _, blocks in _mixed_parts(found):
            for index, block in zip(found.mixed, blocks, strict=True):
                result[index] += block.square().sum(dim=0)
        return result

    return _made(passes, "diagonal of JᵀJ", make)


def normal_matrix(passes: Passes) -> tuple[Tensor, Plan] | str:
    """``JᵀJ`` of the live parameters, summed over some examples at a time; or why it has to be made from rows."""
    layers = passes.layers()
    if not isinstance(layers, str) and layers.mixed:
        return "examples mix before they reach some parameters"

    def make(found: Factors) -> Tensor:
        _check_factors(found)
        size, outputs, examples = found.columns.size, found.layers.apart.outputs, found.layers.examples
        total = torch.zeros((size, size), dtype=found.dtype, device=found.columns.device)
        each = outputs * size * found.dtype.itemsize
        for start, stop in chunk_ranges(examples, max(min(found.limit, PART) // max(each, 1), 1)):
            rows = torch.zeros(((stop - start) * outputs, size), dtype=total.dtype, device=total.device)
            for index, parameter in found.apart.items():
                write_rows(parameter, rows[:, found.columns.leaves[index].slice], slice(start, stop))
            total.addmm_(rows.T, rows)
        found.note(list(found.apart), "rows made of outer products, some examples at a time")
        return total

    return _made(passes, "JᵀJ", make)
