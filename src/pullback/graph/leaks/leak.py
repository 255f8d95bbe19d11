"""What a watch over a training loop reports: graphs that accumulate, in words, numbers and the user's lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.autograd.graph import Node

from pullback.graph.leaks.holders import Holder
from pullback.graph.leaks.keeps import Keep
from pullback.graph.saved import kept_by, pieces
from pullback.graph.values import Place
from pullback.words import many

# A walk over the graph behind a holder ends here: more is not needed to see that it grows.
MOST_NODES = 50_000

Kind = Literal["kept", "growing", "cycle"]


@dataclass(frozen=True, slots=True)
class Leak:
    """Graphs that accumulate in one place.

    Attributes:
        holder: Who keeps them.
        kind: ``kept``: more and more tensors, each with its graph; ``growing``: one tensor whose graph reaches ever
            further back; ``cycle``: tensors that only a reference cycle through their graph keeps.
        tensors: How many tensors with a graph it keeps.
        nodes: How many nodes are behind them; the count ends at 50,000.
        bytes: What these nodes keep for a backward pass, each storage once, without parameters; None where the count
            of nodes ended before all were seen.
        per_step: By how many tensors (``kept``, ``cycle``) or nodes (``growing``) it grows at a step.
        created: The line that made what is kept, or that attached the new graph to the old, if recorded.
        kept_at: The lines that keep it, as far as the source tells.
        fix: What to write instead of these lines.
    """

    holder: str
    kind: Kind
    tensors: int
    nodes: int
    bytes: int | None
    per_step: float
    created: Place | None
    kept_at: tuple[Place, ...]
    fix: str

    @property
    def text(self) -> str:
        """The leak in plain words, over a few lines."""
        match self.kind:
            case "kept":
                what = f"{self.holder} keeps {many(self.tensors, 'tensor')} with their graphs ({self._size})"
                noun = "tensor" if self.per_step == 1 else "tensors"
                lines = [what, f"  it grows by {self.per_step:.3g} {noun} a step"]
            case "growing":
                lines = [
                    f"the graph behind {self.holder} reaches back over all steps ({self._size})",
                    f"  it grows by {self.per_step:.3g} nodes a step",
                ]
            case "cycle":
                lines = [
                    f"{many(self.tensors, 'tensor')} live on in a reference cycle: {self.holder} ({self._size})",
                    f"  {self.per_step:.3g} more a step",
                ]
        lines += [f"  kept at {place}: {place.text}" for place in self.kept_at]
        if self.created is not None and self.created not in self.kept_at:
            lines.append(f"  made at {self.created}: {self.created.text}")
        return "\n".join([*lines, f"  fix: {self.fix}"])

    @property
    def _size(self) -> str:
        count = f"{MOST_NODES:,} nodes or more" if self.nodes >= MOST_NODES else many(self.nodes, "node")
        if self.bytes is None:
            return count
        size = f"{self.bytes / 1e6:,.1f} MB" if self.bytes >= 1e5 else f"{self.bytes:,} bytes"
        return f"{count}, {size} for backward"

    def __str__(self) -> str:
        return self.text


def weigh(tensors: list[Tensor]) -> tuple[int, int | None]:
    """How many nodes are behind tensors, and the bytes these keep for a backward pass."""
    stack: list[Node] = [node for node in dict.fromkeys(tensor.grad_fn for tensor in tensors) if node is not None]
    met = set(stack)
    sizes: dict[int, int] = {}
    leaves: set[int] = set()
    while stack and len(met) < MOST_NODES:
        node = stack.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.update(key for key, _, _ in pieces(leaf))
        for _, tensor in kept_by(node).tensors:
            owned = tensor.requires_grad and tensor.is_leaf
            for key, size, _ in pieces(tensor):
                sizes[key] = size
                if owned:
                    leaves.add(key)
        for after, _ in node.next_functions:
            if after is not None and after not in met:
                met.add(after)
                stack.append(after)
    size = sum(size for key, size in sizes.items() if key not in leaves)
    return len(met), None if len(met) >= MOST_NODES else size


def fix_of(holder: Holder, name: str, kind: Kind, keeps: tuple[Keep, ...], members: int) -> str:
    """The statements that keep the graphs, rewritten; advice where there are none."""
    fix = "; ".join(dict.fromkeys(keep.fix for keep in keeps if keep.fix))
    if members > 1 and fix == f"{holder.bare} = {holder.bare}.detach()":
        return f"{holder.bare} = tuple(part.detach() for part in {holder.bare})"
    return fix or advice(holder, name, kind)


def advice(holder: Holder, name: str, kind: Kind) -> str:
    """What to do where no statement was found that could be rewritten."""
    if holder.where == "gradient":
        return (
            "optimizer.zero_grad() (or .grad = None) after each step that used create_graph=True, "
            "or torch.autograd.grad instead of backward"
        )
    if kind == "cycle" and holder.name.startswith("ctx."):
        return f"ctx.save_for_backward({holder.bare}) instead of {holder.name} = ..."
    if kind == "cycle":
        return (
            f"{holder.bare}_value = {holder.bare}.detach() outside, and {holder.bare}_value inside {holder.short_owner}"
        )
    if holder.name.startswith("Out"):
        return "Out.clear(), and end the cell's last line with a semicolon"
    if kind == "kept":
        return f"put value.detach() or value.item() into {name}"
    return f"{name} = {name}.detach()"
