"""Recording: the program of one reverse pass, or why it cannot be relied on."""

from __future__ import annotations

from pullback.autodiff.linearize import Deferred, Linearization, Recorded
from pullback.autodiff.program import NotRecordable, Program
from pullback.errors import PullbackError
from pullback.executors.local import first_line
from pullback.executors.memory import is_out_of_memory


def record(lin: Linearization, *, math: bool = False) -> Program | str:
    """The operations of a reverse pass through a point, or why they cannot be seen.

    Args:
        lin: The function at the point.
        math: Attention is computed by its math formulation.
    """
    if isinstance(lin, Deferred):
        lin = lin.real
    if not isinstance(lin, Recorded):
        return "inside a torch.func transform no program can be recorded"
    try:
        program = lin.record("reverse", math=math)
    except NotRecordable as error:
        return str(error)
    except PullbackError:
        raise
    except Exception as error:  # f has run before; what fails now is to look at it while it runs
        if is_out_of_memory(error):
            raise
        return f"the program cannot be recorded: {first_line(error)}"
    if program.escaped:
        return f"numbers leave torch on the way: {', '.join(program.escaped[:3])}"
    return program
