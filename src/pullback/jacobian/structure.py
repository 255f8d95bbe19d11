"""From a linearization to the structure of its Jacobian."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from pullback.autodiff.closures import held_by
from pullback.autodiff.linearize import Linearization
from pullback.autodiff.program import Program
from pullback.errors import StrategyError, warn
from pullback.sparsity.sets import TooManyEntries
from pullback.sparsity.structure import Structure, nothing, structure


def find(
    lin: Linearization,
    recorded: Callable[[], Program | str],
    *,
    local: bool,
    free: frozenset[int] = frozenset(),
    strict: bool = False,
) -> Structure | str:
    """Where the Jacobian can be non-zero; or why that cannot be seen.

    Args:
        lin: The function at its point.
        recorded: Gives the program of a reverse pass there, or why there is none.
        local: At this point only, rather than at every point that takes the same branches.
        free: The ids of other tensors whose numbers may differ from call to call.
        strict: Raise where an operation has no rule.

    Raises:
        StrategyError: An operation has no rule, and ``strict`` asked to hear of it.
    """
    if not lin.live_outputs or not lin.live_inputs:
        return nothing()
    program = recorded()
    if isinstance(program, str):
        return program
    buffers = {id(buffer) for module in held_by(lin.problem.f).modules for buffer in module.buffers()}

    def fixed(_: int, tensor: Tensor) -> bool:
        """Whether a tensor found outside is a constant: not a weight, trained or frozen, nor a module's state."""
        known = tensor.requires_grad or isinstance(tensor, nn.Parameter)
        return not known and id(tensor) not in free and id(tensor) not in buffers

    try:
        found = structure(program, local=local, fixed=fixed)
    except TooManyEntries as error:
        return str(error)
    if strict and found.unknown:
        raise StrategyError(
            "an operation has no sparsity rule",
            got=", ".join(f"{name} ({line})" for name, line in found.unknown.items()),
            fix="strict=False takes all of its results to depend on all of its operands",
        )
    for name, line in found.unknown.items():
        note = f"no sparsity rule for {name} ({line}): all of its results are taken to depend on all of its operands"
        found.notes.append(note)
        warn(note)
    return found
