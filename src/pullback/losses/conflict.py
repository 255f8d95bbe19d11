"""How far the gradients of several losses agree: a report that holds cosines and norms, and prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from pullback.losses.passes import groups_within_memory, row_passes
from pullback.losses.rows import gram_of
from pullback.losses.tasks import Tasks, no_shared, reached_leaves
from pullback.words import columns

# A table shows no more pairs than this.
MOST_SHOWN = 20


class Pair(NamedTuple):
    """Two losses in one layer."""

    layer: str
    first: str
    second: str
    cosine: float
    norms: tuple[float, float]


@dataclass(frozen=True, eq=False, repr=False)
class Conflicts:
    """Cosines and norms of the gradients of several losses, by all parameters and layer by layer.

    ``gram[i, j] = ∇ℓ_i · ∇ℓ_j``; two losses conflict where the cosine is negative: a step down one climbs the other.
    It prints as a table, the largest conflict first.

    Attributes:
        names: What the losses are called.
        values: Their values, ``(m,)``.
        gram: The inner products of their gradients by all shared parameters, ``(m, m)``.
        layers: The same by the parameters of each layer, by name; only layers that two losses reach.
        parameters: The same by each parameter, by name.
    """

    names: tuple[str, ...]
    values: Tensor
    gram: Tensor
    layers: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]

    @property
    def norms(self) -> Tensor:
        """The norms of the gradients, ``(m,)``."""
        return norms_of(self.gram)

    @property
    def cosines(self) -> Tensor:
        """The cosines of the angles between the gradients, ``(m, m)``; NaN where a gradient is zero."""
        return cosines_of(self.gram)

    def pairs(self) -> list[Pair]:
        """Every two losses in every layer that both reach, the largest conflict first."""
        found = [pair for layer, gram in self.layers.items() for pair in self._pairs_in(layer, gram)]
        return sorted(found, key=_by_cosine)

    def _pairs_in(self, layer: str, gram: Tensor) -> list[Pair]:
        cosines, norms = cosines_of(gram).tolist(), norms_of(gram).tolist()
        return [
            Pair(layer, self.names[i], self.names[j], cosines[i][j], (norms[i], norms[j]))
            for i, j in combinations(range(len(self.names)), 2)
            if norms[i] and norms[j]
        ]

    def __str__(self) -> str:
        whole = self._pairs_in("all", self.gram)
        pairs = self.pairs()
        opposed = sum(pair.cosine < 0 for pair in pairs)
        lines = [
            f"{len(self.names)} losses over {_counted(len(self.parameters), 'shared parameter')} "
            f"in {_counted(len(self.layers), 'layer')}; "
            f"{opposed} of {len(pairs)} pairs conflict",
            "",
            *columns([("loss", "value", "norm of gradient"),
                      *((name, f"{value:.4g}", f"{norm:.4g}") for name, value, norm in
                        zip(self.names, self.values.tolist(), self.norms.tolist(), strict=True))]),
            "",
            *columns([("cosine", "losses", "layer", "norms"),
                      *map(_row, sorted(whole, key=_by_cosine) + pairs[:MOST_SHOWN])]),
        ]  # fmt: skip
        if len(pairs) > MOST_SHOWN:
            lines.append(
                f"... and {len(pairs) - MOST_SHOWN} pairs with a cosine above {pairs[MOST_SHOWN - 1].cosine:+.3f}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def find_conflicts(tasks: Tasks, named: Mapping[str, Tensor] | None, name: Callable[[int, Tensor], str]) -> Conflicts:
    """The conflicts of losses; the graph is kept, and no ``.grad`` is touched.

    Args:
        tasks: The losses.
        named: The parameters by name; None: all that they reach.
        name: What a parameter is called that has no name: told its place and itself.

    Raises:
        GraphError: No parameter is reached by two losses.
    """
    if named is None:
        named = {name(place, leaf): leaf for place, leaf in enumerate(reached_leaves(tasks)[0])}
    keys, leaves = [*named], [*named.values()]
    found: dict[str, Tensor] = {}
    for group in groups_within_memory(leaves, len(tasks.losses)):
        rows = row_passes(tasks, [leaves[index] for index in group], lambda rows: True)
        places = [place for place in range(len(group)) if sum(row[place] is not None for row in rows) > 1]
        for place in places:
            found[keys[group[place]]] = gram_of(rows, [place], tasks.values.device).double()
    if not found:
        raise no_shared(tasks, leaves)
    layers: dict[str, Tensor] = {}
    for key, gram in found.items():
        layer = key.rpartition(".")[0] or key
        layers[layer] = layers[layer] + gram if layer in layers else gram
    total = torch.stack([*found.values()]).sum(dim=0)
    return Conflicts(tasks.names, tasks.values, total, layers, found)


def norms_of(gram: Tensor) -> Tensor:
    """The norms of rows, from their Gram matrix."""
    return gram.diagonal().clamp(min=0).sqrt()


def cosines_of(gram: Tensor) -> Tensor:
    """The cosines of the angles between rows, from their Gram matrix."""
    norms = norms_of(gram)
    return (gram / norms[:, None] / norms[None]).clamp(-1, 1)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _by_cosine(pair: Pair) -> float:
    return round(pair.cosine, 6)  # what differs by rounding keeps its order


def _row(pair: Pair) -> tuple[str, ...]:
    return f"{pair.cosine:+.3f}", f"{pair.first}, {pair.second}", pair.layer, "{:.4g}, {:.4g}".format(*pair.norms)
