"""The graph as one object: what it holds, what it keeps in memory, a seed replayed through it, and its pictures."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pullback.autodiff.seeds import assign, cotangent
from pullback.errors import GraphError, StrategyError, ValueMismatch
from pullback.graph.groups import Branch, grouped
from pullback.graph.memory import Memory
from pullback.graph.picture import outline_of, picture_of
from pullback.graph.replaying.replay import replay
from pullback.graph.replaying.steps import Replay
from pullback.graph.text import as_text, as_tree, short
from pullback.graph.values import Edge, Node, Output, Storage
from pullback.graph.walk import Walk
from pullback.view.dot import dot
from pullback.view.page import page
from pullback.view.picture import Picture
from pullback.view.svg import svg
from pullback.view.words import LANGUAGES

if TYPE_CHECKING:
    from rich.tree import Tree


class Graph:
    """What torch recorded on the way to some outputs, from ``pb.graph(y)``.

    Arrows point as the program ran, from the node that made a tensor to the node that used it. ``print(graph)`` shows
    it as a tree of modules and lines, with repeated layers folded; in a notebook it draws itself.

    The nodes, edges, outputs and storages are plain values. Beside them the graph holds the outputs it was made from,
    so that a seed can be replayed: what they keep in memory stays until both are gone.

    Attributes:
        nodes: All nodes, producers before users.
        edges: Which output of which node each node was given.
        outputs: The tensors that the graph was asked for, by name.
        storages: The pieces of memory that it keeps alive, each once.
    """

    def __init__(self, tensors: Any, walk: Walk) -> None:
        self._tensors = tensors
        self._walk = walk
        self.nodes: tuple[Node, ...] = walk.nodes
        self.edges: tuple[Edge, ...] = walk.edges
        self.outputs: tuple[Output, ...] = walk.outputs
        self.storages: tuple[Storage, ...] = walk.storages

    def memory(self) -> Memory:
        """What a backward pass keeps alive, by module, operation and line, and what would keep less.

        Each storage is counted once, in bytes; what belongs to parameters and inputs is shown apart.

        >>> import torch, pullback as pb
        >>> x = torch.ones(256, requires_grad=True)
        >>> pb.graph(x.exp().sum()).memory().kept
        1024
        """
        return Memory(self.nodes, self.edges, self.storages)

    def replay(self, seed: Any = "ones") -> Replay:
        """Send a seed back through the graph and tell what every node received and passed on.

        The cotangent of a node's argument is ``uᵀJ``, with ``u`` the cotangent of its output and ``J`` its local
        Jacobian. The pass is torch's own, so the gradients are those of ``torch.autograd.grad`` bit for bit; no
        ``.grad`` changes, and the graph can be used again. Hooks and custom Functions run as in any backward pass.

        Args:
            seed: As for :func:`pullback.backward`, in the structure of the outputs; ``"ones"`` for the gradient of
                the sum.

        Returns:
            The steps in the order of the engine, where a NaN, an inf, an exact zero or an explosion was born, and
            the gradients. ``print(replay)`` lists them; ``print(replay.step(i))`` shows one with its numbers.

        Raises:
            SeedError: The seed does not fit its output.
            GraphError: The graph has been freed.

        >>> import torch, pullback as pb
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> replay = pb.graph(x ** 2).replay(torch.tensor([1.0, 10.0]))
        >>> print(replay.step(0).splitlines()[-1].strip())
        [ 0  4 ]
        """
        assigned = [each for each in assign(self._tensors, seed) if each[0].requires_grad]
        outputs = [output for output, _, _ in assigned]
        cotangents = [cotangent(output, weight, name) for output, weight, name in assigned]
        return replay(outputs, cotangents, self._walk.leaves, self._walk.index_of, labels=self.labels)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What to call each node in a text: its operation or name, and its line if it was recorded."""
        return tuple(map(_label, self.nodes))

    def html(self, path: str | os.PathLike[str], *, seed: Any = "ones", language: str = "en") -> Path:
        """Write a page that draws the graph: one file, without network or server.

        Pan, zoom and search; fold and unfold modules; a click on a node shows its card; colour by memory, gradient
        or time; step through the replay of the seed.

        Args:
            path: Where to write.
            seed: The seed to replay, as for :meth:`replay`; None for a page without a replay, for which no backward
                pass runs. A graph that was freed is drawn without one, and the page says so.
            language: ``"en"`` or ``"zh"``: the language that the page opens in; it holds both.

        Returns:
            The path.

        Raises:
            StrategyError: The package that lays it out is not installed: ``pip install 'pullback[graph]'``.
            ValueMismatch: The language is not known.
            SeedError: The seed does not fit its output.
        """
        if language not in LANGUAGES:
            raise ValueMismatch(
                "the page does not speak this language", got=repr(language), fix=" or ".join(map(repr, LANGUAGES))
            )
        text = page(self.picture(seed=seed), language=language)
        path = Path(path)
        path.write_text(text, encoding="utf-8")
        return path

    def picture(self, *, seed: Any = None) -> Picture:
        """The graph as a picture of plain values, with a replay of the seed unless it is None."""
        if seed is None:
            return picture_of(self, None)
        try:
            return picture_of(self, self.replay(seed))
        except GraphError as error:
            return picture_of(self, None, trouble=error.what)

    def svg(self) -> str:
        """The graph as a drawing that any viewer of images shows, folded as the page is at first.

        Raises:
            StrategyError: The package that lays it out is not installed: ``pip install 'pullback[graph]'``.
        """
        return svg(outline_of(self))

    def dot(self) -> str:
        """The graph in Graphviz's language, modules as clusters; nothing else needs to be installed for it.

        >>> import torch, pullback as pb
        >>> print(pb.graph(torch.ones(2, requires_grad=True).sum()).dot().split()[0])
        digraph
        """
        return dot(outline_of(self))

    def to_json(self) -> str:
        """Nodes, edges, outputs and storages for other tools; shapes are lists, dtypes and devices their names."""
        parts = {name: getattr(self, name) for name in ("nodes", "edges", "outputs", "storages")}
        return json.dumps({name: list(map(_plain, values)) for name, values in parts.items()}, ensure_ascii=False)

    @cached_property
    def tree(self) -> Branch:
        """The nodes by module, with repetitions folded."""
        return grouped(self.nodes)

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def __rich__(self) -> Tree:
        return as_tree(self)

    def _repr_html_(self) -> str | None:
        """The graph in a notebook: the page in a frame of its own; None, for the text, where it cannot be laid out."""
        try:
            framed = page(self.picture(seed=None)).replace("&", "&amp;").replace('"', "&quot;")
        except StrategyError:
            return None
        return f'<iframe srcdoc="{framed}" style="width:100%;height:600px;border:0" title="autograd graph"></iframe>'


def _label(node: Node) -> str:
    made = f"{node.operation} → {node.name}" if node.name and node.sequence is not None else node.name
    return (made or node.operation) + (f"  {short(node.place)}" if node.place else "")


def _plain(value: Any) -> Any:
    """A value as what JSON has: named tuples are objects, dtypes and devices their names."""
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
