"""From a linearization to its layers: what its gradients are made of, and which example each position belongs to."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.autodiff.program import NotRecordable, Program, fingerprint
from pullback.executors.local import first_line, routes
from pullback.executors.memory import is_out_of_memory
from pullback.jacobian.passes import OWNERS, Passes
from pullback.jacobian.verify import random_vector
from pullback.outer.find import Found, find
from pullback.outer.layers import Layers, Way
from pullback.outer.owners import Owners, masks, owners
from pullback.strategies.blocks import common_lead


def find_layers(passes: Passes) -> Layers | str:
    """How gradients are made of outer products; or why that is not seen."""
    lin = passes.linearization
    if lin.create_graph:
        return "a recorded program cannot be differentiated again"
    if not lin.rows.size or not lin.columns.size:
        return "every derivative is zero"
    if lin.rows.is_complex or lin.columns.is_complex:
        return "complex functions are built by rows or columns"
    program = passes.program()
    if isinstance(program, str):
        return program
    if any(view.dtype.is_complex for step in program.steps for view in step.results):
        return "complex numbers on the way"
    passes.verifier.coarsest = max(passes.verifier.coarsest, _roundoff(program))
    try:
        found = find(program, [tuple(leaf.shape) for leaf in lin.columns.leaves])
        return _with_owners(passes, program, found)
    except NotRecordable as error:
        return str(error)
    except Exception as error:  # the program is run again here in parts, which not every operation lets pass
        if is_out_of_memory(error):
            raise
        return f"the program does not run in parts: {first_line(error)}"


def _roundoff(program: Program) -> float:
    """The unit roundoff of the coarsest dtype on the way: autocast leaves no trace in inputs and outputs."""
    dtypes = {view.dtype for step in program.steps for view in step.results}
    return max((torch.finfo(each).eps for each in dtypes if each.is_floating_point), default=0.0)


def _with_owners(passes: Passes, program: Program, found: Found) -> Layers:
    """The owners of all positions along as many leading dimensions as keep them apart.

    For a program of the same operations and shapes they are those of before, and what is made with them is verified.
    """
    rows, columns = passes.linearization.rows, passes.linearization.columns
    shared = common_lead(rows, rows)
    # What a last dimension counts are parts of an example, unless it is the only one.
    most = max(min(len(shared), *(len(shape) - 1 for shape in rows.shapes)), min(len(shared), 1))
    everything = tuple(range(len(found.parts)))
    if not most or not found.bases:
        return Layers(found, 0, rows, columns, {})
    like = fingerprint(program)
    known = passes.verifier.recall(OWNERS) if passes.verifier.active else None
    keys = _keys(found)
    if known is not None and known[0] == like and len(known[2]) == len(keys):
        passes.owners_known = True
        return Layers(found, known[1], rows, columns, dict(zip(keys, known[2], strict=True)))
    way = Way(found, everything, _unknown, 1, 1, columns)
    lead = next((lead for lead in range(most, 1, -1) if _halves_apart(passes, way, shared[:lead])), 1)
    proved = _owners(passes, way, masks(math.prod(shared[:lead])), shared[:lead])
    if all(each is not None and each.real is None for each in proved.values()):  # no position was left out here
        passes.verifier.learn(OWNERS, (like, lead, [proved[key] for key in keys]))
    return Layers(found, lead, rows, columns, proved)


def _keys(found: Found) -> list[object]:
    """The contributions' keys, in the order in which they were found."""
    return list(dict.fromkeys(part.key for parts in found.parts for part in parts))


def _unknown(_: object) -> Owners:
    raise AssertionError("owners are asked for before they are known")


def _halves_apart(passes: Passes, way: Way, shared: tuple[int, ...]) -> bool:
    """Whether no position is reached both from a random half of the examples and from the other one."""
    half = torch.rand(math.prod(shared), generator=torch.Generator().manual_seed(11)) < 0.5
    reached = _reached(passes, way, torch.stack([half, ~half]), shared)
    return not any(bool((each[0] & each[1]).any()) for each in reached.values())


def _owners(passes: Passes, way: Way, chosen: Tensor, shared: tuple[int, ...]) -> dict[object, Owners | None]:
    """For each contribution's key the owners of its positions; none where one has two."""
    reached = _reached(passes, way, chosen, shared)
    return {key: owners(each, math.prod(shared)) for key, each in reached.items()}


def _reached(passes: Passes, way: Way, chosen: Tensor, shared: tuple[int, ...]) -> dict[object, Tensor]:
    """For each contribution's key and each mask the positions that seeds on its examples reach."""
    parts = {part.key: part for parts in way.found.parts for part in parts}
    reached: dict[object, Tensor] = {}
    if not len(chosen):
        return reached | {key: torch.zeros((0, part.positions), dtype=torch.bool) for key, part in parts.items()}
    answers = dict(zip(way.bases, _run_masked(passes, way, chosen, shared), strict=True))
    for key, part in parts.items():
        g = part.layout(answers[part.base].detach())
        # As large as its largest element, or NaN: faster than to ask whether any is not zero.
        reached[key] = g.abs().amax(dim=(-2, -1)) != 0 if g.numel() else torch.zeros(g.shape[:2], dtype=torch.bool)
    return reached


def _run_masked(passes: Passes, way: Way, chosen: Tensor, shared: tuple[int, ...]) -> Tensors:
    """Passes seeded at random on the examples that each mask selects."""
    lin = passes.linearization
    some = chosen.reshape(-1, *shared)

    def seeds(start: int, stop: int) -> Tensors:
        return tuple(
            some[start:stop].reshape(stop - start, *shared, *(1,) * (part.ndim - len(shared))).to(part.device) * part
            for part in random_vector(lin.rows, seed=13)
        )

    kernel: Callable[[Tensors], Tensors] = way.kernel()
    found, _ = passes.execute("reverse", routes({"reverse to the layers": kernel}), seeds, len(some), way.space)
    return found
