"""Leaves that get gradients although no optimizer has them, and that nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import in_optimizers
from pullback.diagnose.values import Subject

# So many passes are looked at for new leaves.
LOOKS = 6


@dataclass
class Left:
    """A leaf that was reached, and that no optimizer had then.

    Attributes:
        tensor: The leaf.
        subject: The same, as it is shown.
        numbers: A number that changes when it is written to.
        spot: The pass.
        changed: Whether it has been written to since.
    """

    tensor: ref[Tensor]
    subject: Subject
    numbers: float
    spot: Spot | None
    changed: bool = False


class Untrained:
    """Remembers the leaves that passes reach and that no optimizer has."""

    def __init__(self) -> None:
        self.left: dict[int, Left] = {}
        self.looks = 0

    def passes_now(self, audit: Audit, backward: Backward) -> None:
        """A pass that adds to ``.grad`` is about to run."""
        if not backward.record.accumulates or self.looks >= LOOKS:
            return
        self.looks += 1
        trained = in_optimizers(audit)
        for leaf in backward.leaves:
            known = self.left.get(id(leaf))
            if known is not None and known.tensor() is leaf:
                known.changed = known.changed or numbers_of(leaf) != known.numbers
            elif id(leaf) not in trained and not backward.inputs:
                self.left[id(leaf)] = Left(ref(leaf), audit.subject(leaf, "parameter"), numbers_of(leaf), backward.spot)

    def now(self, audit: Audit) -> list[Left]:
        """Those that are still so: of tensors that are gone, as it was last."""
        trained = in_optimizers(audit)
        found = []
        for key, left in self.left.items():
            tensor = left.tensor()
            if tensor is not None:
                left.changed = left.changed or key in trained or numbers_of(tensor) != left.numbers
            if not left.changed:
                found.append(left)
        return found


def numbers_of(tensor: Tensor) -> float:
    """A number that changes when the tensor is written to."""
    if not tensor.dtype.is_floating_point or tensor.is_sparse or tensor.is_nested:
        return 0.0
    with torch.no_grad():
        return float(tensor.detach().flatten()[:1000].double().sum())
