"""Checksums of what nodes keep for their backward, taken when they are made. No tensor is held."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from pullback.diagnose.evidence.frames import Spot
from pullback.graph.saved import kept_by

# So many nodes are remembered.
NODES = 1 << 15
# So many elements of a tensor are weighed by their place; of a larger one only the sum is taken.
WEIGHED = 1 << 16
# What a forward pass itself may change later on without harm.
OWN = frozenset({"running_mean", "running_var"})
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(slots=True)
class Sum:
    """What is known of one tensor that a node keeps.

    Attributes:
        name: What the node calls it.
        value: Its checksum.
        version: Its version then.
        packed: Whether a hook packed it, so that torch does not check its version.
    """

    name: str
    value: int
    version: int
    packed: bool


@dataclass(slots=True)
class Noted:
    """What is known of one node.

    Attributes:
        name: The name of the node.
        spot: The line of the user's that made it.
        call: The number of the call of torch that made it.
        sums: Its tensors.
    """

    name: str
    spot: Spot | None
    call: int
    sums: list[Sum]


class Checksums:
    """Remembers checksums of what nodes keep, by the sequence number of the node."""

    def __init__(self) -> None:
        self._noted: OrderedDict[int, Noted] = OrderedDict()

    def note(self, starts: Iterable[Node | None], spot: Spot | None, call: int) -> None:
        """Note the nodes behind these that are not noted yet."""
        stack = [node for node in starts if node is not None]
        hooked = _hooked()
        while stack:
            node = stack.pop()
            number = node._sequence_nr()
            if number >= 2**63 or number in self._noted:
                continue
            self._noted[number] = Noted(node.name(), spot, call, list(_sums(node, hooked)))
            stack += [child for child, _ in node.next_functions if child is not None]
        while len(self._noted) > NODES:
            self._noted.popitem(last=False)

    def changed(self, nodes: Iterable[Node]) -> Iterator[tuple[Noted, Sum, Tensor]]:
        """What nodes keep that is no longer as it was, where torch itself will not notice."""
        for node in nodes:
            noted = self._noted.get(node._sequence_nr())
            if noted is None or noted.name != node.name() or not noted.sums:
                continue
            before = {each.name: each for each in noted.sums}
            for name, tensor in kept_by(node).tensors:
                old = before.get(name)
                if old is None or (not old.packed and _version(tensor) != old.version):
                    continue
                if (value := checksum(tensor)) is not None and value != old.value:
                    yield noted, old, tensor


def _hooked() -> bool:
    """Whether what is saved now goes through a hook, which may hand it on as the very tensor."""
    try:
        return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    except (AttributeError, TypeError):
        return False


def _sums(node: Node, hooked: bool) -> Iterator[Sum]:
    kept = kept_by(node)
    packed = set(kept.hidden.partition(":")[0].split(", ")) if "packed" in kept.hidden else set()
    seen: dict[str, int] = {}
    for name, _ in kept.tensors:
        seen[name] = seen.get(name, 0) + 1
    for name, tensor in kept.tensors:
        if seen[name] == 1 and not any(name.endswith(own) for own in OWN) and (value := checksum(tensor)) is not None:
            yield Sum(name, value, _version(tensor), hooked or name in packed)


def checksum(tensor: Tensor) -> int | None:
    """A number that an edit changes, all but surely; None of a tensor whose bytes cannot be read."""
    if type(tensor) not in {Tensor, nn.Parameter} or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad(), suppress(RuntimeError, NotImplementedError):
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg() or plain.is_inference():
            return None
        if plain.is_complex():
            plain = torch.view_as_real(plain)
        size = plain.element_size()
        if size not in _WIDTHS or plain.untyped_storage().nbytes() < plain.numel() * size * (0 not in plain.stride()):
            return None
        flat = plain.reshape(-1)
        whole = (flat.to(torch.uint8) if flat.dtype is torch.bool else flat.view(_WIDTHS[size])).to(torch.int64)
        if whole.numel() <= WEIGHED:
            whole = whole * torch.arange(1, whole.numel() + 1, device=whole.device)
        return int(whole.sum())
    return None


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return -1
