"""What a graph consists of, as plain values: no tensor and no autograd node is held by any of these.

They are named tuples rather than dataclasses because a graph has many: they are made and compared several times faster.

Arrows point as the program ran, from the node that made a tensor to the node that used it; a backward pass
walks them the other way.
"""

from __future__ import annotations

import linecache
import os
from typing import Literal, NamedTuple

import torch

Kind = Literal["operation", "custom", "parameter", "input"]


class Facts(NamedTuple):
    """What a tensor is, without the tensor: as much as is known of a value or of its cotangent."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        where = "" if self.device.type == "cpu" else f" {self.device}"
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{where}"


class Place(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line as it is written, without its indentation; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def path(self) -> str:
        """The file as seen from the current directory if it is in it, and otherwise in full."""
        here = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - a page asks this for each of its nodes
        return self.file.removeprefix(here)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class ModuleCall(NamedTuple):
    """One call of a module: its name in the model, its class, and which of its calls this was, from 0."""

    name: str
    kind: str
    number: int


class Saved(NamedTuple):
    """A tensor that a node keeps for its backward.

    Attributes:
        name: What the node calls it, such as ``self`` or ``mat1``.
        facts: Shape, dtype and device.
        storage: Which storage holds it: an index into the graph's storages.
        producer: The node that made it, or None for a leaf and for what was computed beside the graph (a dropout mask).
    """

    name: str
    facts: Facts
    storage: int
    producer: int | None


class Storage(NamedTuple):
    """A piece of memory that the graph keeps alive, counted once however many nodes use it.

    Attributes:
        bytes: Its size.
        device: Where it lies.
        owner: The parameter, buffer or input that it belongs to and that lives on without the graph, by name; None
            where only the graph keeps it.
    """

    bytes: int
    device: torch.device
    owner: str | None


class Node(NamedTuple):
    """One node of the graph: an operation, or the leaf in which a backward pass ends.

    Attributes:
        index: Its place in ``graph.nodes``; producers come before users.
        operation: What was computed, such as ``Addmm``; ``leaf`` for a leaf.
        kind: An operation of torch, a custom ``autograd.Function``, a parameter of a module, or another leaf.
        produces: The tensors it made, one for each output: a backward pass brings it a cotangent for each.
        receives: The tensors that it was given and that need a gradient, in order; None where one needs none.
        name: The name of the leaf, or of the variable that holds the result, if it is known.
        place: The line that made it, if it was recorded.
        calls: The module calls inside which it was made, outermost first.
        saved: The tensors that it keeps for its backward.
        hidden: Why not all that it keeps could be seen, or empty.
        freed: Whether what it kept has been freed by an earlier backward pass.
        sequence: torch's own number of it, or None for a leaf.
    """

    index: int  # type: ignore[assignment] # not tuple.index, which nobody calls on a node
    operation: str
    kind: Kind
    produces: tuple[Facts, ...]
    receives: tuple[Facts | None, ...]
    name: str | None
    place: Place | None
    calls: tuple[ModuleCall, ...]
    saved: tuple[Saved, ...]
    hidden: str
    freed: bool
    sequence: int | None


class Edge(NamedTuple):
    """From output ``output`` of the node that made a tensor to argument ``input`` of the node that used it."""

    producer: int
    output: int
    consumer: int
    input: int


class Output(NamedTuple):
    """A tensor the graph was asked for: its name, the node that made it, and which of its outputs it is."""

    name: str
    node: int
    number: int
    facts: Facts
