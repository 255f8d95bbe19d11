"""From a linearization to the structure of its Jacobian."""

from __future__ import annotations

from pullback.autodiff.closures import held_by
from pullback.autodiff.linearize import Linearization, Recorded
from pullback.autodiff.program import NotRecordable
from pullback.errors import warn
from pullback.sparsity.structure import Structure, nothing, structure


def find(lin: Linearization, *, local: bool, free: frozenset[int] = frozenset()) -> Structure | str:
    """Where the Jacobian can be non-zero; or why that cannot be seen.

    Args:
        lin: The function at its point.
        local: At this point only, rather than at every point that takes the same branches.
        free: The ids of other tensors whose numbers may differ from call to call.
    """
    if not lin.live_outputs or not lin.live_inputs:
        return nothing()
    if not isinstance(lin, Recorded):
        return "inside a torch.func transform no program can be recorded"
    try:
        program = lin.record("reverse")
    except NotRecordable as error:
        return str(error)
    if program.escaped:
        return f"numbers leave torch on the way: {', '.join(program.escaped[:3])}"
    varying = free | {id(buffer) for module in held_by(lin.problem.f).modules for buffer in module.buffers()}
    found = structure(
        program, local=local, fixed=lambda _, tensor: not tensor.requires_grad and id(tensor) not in varying
    )
    for name, line in found.unknown.items():
        note = f"no sparsity rule for {name} ({line}): all of its results are taken to depend on all of its operands"
        found.notes.append(note)
        warn(note)
    return found

