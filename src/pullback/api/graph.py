"""Look at what torch recorded: the graph behind outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pullback.autodiff.seeds import assign
from pullback.errors import ArgumentError, GraphError
from pullback.graph.graph import Graph
from pullback.graph.names import Names, bare
from pullback.graph.walk import walk


def graph(outputs: Any, names: Any = None) -> Graph:
    """The autograd graph behind outputs, as an object to print, measure, replay and draw.

    Its nodes are the operations whose derivatives a backward pass would chain; ``y = f(x)`` computed by
    ``z = g(x); y = h(z)`` has the nodes ``g`` and ``h``, and ``uᵀJ = (uᵀ J_h) J_g`` runs through them from ``h``.
    Compute the outputs inside ``with pb.record():`` to know the line and the module that made each node as well.

    Args:
        outputs: A tensor with a graph, or tensors in a dict, tuple or other structure. Those that carry no graph are
            left out, as long as one does.
        names: What to call parameters, inputs and modules: a module, a dict of tensors or modules, or a structure of
            these. By default the variables of the caller.

    Returns:
        The graph; see :class:`pullback.Graph`. It holds the outputs, and what they hold.

    Raises:
        ArgumentError: There is no output, or one is not a tensor.
        GraphError: No output carries a graph.

    >>> import torch, pullback as pb
    >>> x = torch.ones(3, requires_grad=True)
    >>> print(pb.graph((x.exp() * 2).sum()))
    output () float32 · 3 nodes, 1 leaf · keeps 20 B
    └── Exp, Mul, Sum  → () float32 · uses x · keeps 20 B
    """
    assigned = [(name, output) for output, _, name in assign(outputs, None)]
    carrying = [(name, output) for name, output in assigned if output.requires_grad]
    if not carrying:
        raise GraphError(
            "no output carries a graph: nothing was recorded on the way to it",
            got=", ".join(f"{name} with requires_grad=False" for name, _ in assigned[:3]),
            fix="compute it from a tensor with requires_grad=True, outside torch.no_grad() and without .detach()",
        )
    known = Names()
    if names is not None:
        _check_names(names)
        known.add("", names)
    known.add_frame(sys._getframe(1))
    with torch.inference_mode(False), torch.enable_grad():
        return Graph(outputs, walk([(_called(name, output, known), output) for name, output in carrying], known))


def _called(name: str, output: Tensor, known: Names) -> str:
    """The name of an output: its key, or the variable that holds it."""
    if name.startswith("output['"):
        return bare(name.removeprefix("output"))
    held = known.name_of(output)
    return held or (name if name.startswith("output") else "output")


def _check_names(names: Any) -> None:
    if not isinstance(names, Tensor | nn.Module | Mapping | list | tuple):
        raise ArgumentError(
            "names= tells what to call tensors and modules, so it holds them",
            got=type(names).__name__,
            fix='pb.graph(loss, model) or pb.graph(loss, {"x": x, "net": net})',
        )
