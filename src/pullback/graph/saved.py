"""What a node keeps for its backward, read without unpacking: no hook runs and no version is checked."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from pullback.graph.slots import slots

_RAW = "_raw_saved_"
_SECOND_TIME = "second time"
_CAN_LOOK = hasattr(torch._C._autograd.SavedTensor, "data")
# Nodes that wrap another node, whose saved tensors Python cannot reach.
_UNSEEN = {"torch::autograd::CopySlices": "what the operation written in place keeps cannot be seen from Python"}


@dataclass(frozen=True, slots=True)
class Kept:
    """What one node keeps: its tensors by the node's own names, why not all could be seen, whether it was freed."""

    tensors: list[tuple[str, Tensor]]
    hidden: str
    freed: bool


def kept_by(node: Node) -> Kept:
    """The tensors that a node keeps alive, as the very tensors that were saved."""
    if not _raw_names(type(node)) and not hasattr(node, "_forward_cls"):
        return Kept([], _UNSEEN.get(node.name(), ""), False)
    kept: list[tuple[str, Tensor]] = []
    packed, freed = [], False
    for name, saved in _raw(node):
        value = None if saved is None else saved.data
        if isinstance(value, Tensor):
            kept.append((name, value))
        elif value is not None:
            kept.extend((name, part) for part in _tensors(value))
            packed.append(name)
        else:
            freed = freed or saved is None or _is_freed(saved)
    if hasattr(node, "_forward_cls"):
        kept += _attributes(node)
    hidden = f"{', '.join(packed)}: packed by a hook" if packed else ""
    return Kept(kept, hidden, freed)


def is_packed(node: Node) -> bool:
    """Whether hooks would have to run for what a node keeps."""
    return any(getattr(saved, "unpack_hook", None) is not None for _, saved in _raw(node))


def pieces(tensor: Tensor) -> list[tuple[int, int, torch.device]]:
    """The storages under a tensor: a key that holds while it lives, its bytes and its device."""
    found = []
    for part in _plain_parts(tensor):
        try:
            storage = part.untyped_storage()
            found.append((storage._cdata, storage.nbytes(), storage.device))
        except (NotImplementedError, RuntimeError):  # a subclass, or a layout, that has no storage of its own
            found.append((id(part), part.numel() * part.element_size(), part.device))
    return found


def _raw(node: Node) -> Iterator[tuple[str, Any]]:
    """Each saved tensor of a node by name; None for a list of them that was freed."""
    for attribute in _raw_names(type(node)):
        name = attribute.removeprefix(_RAW)
        try:
            value = getattr(node, attribute)
        except RuntimeError:
            yield name, None
            continue
        many = isinstance(value, tuple)
        if not _CAN_LOOK:
            own = f"saved_{name}" if hasattr(node, "_forward_cls") else f"_saved_{name}"
            found = slots(node, own, value if many else [value])
            value = tuple(found) if many else found[0]
        if not many:
            yield name, value
            continue
        for index, one in enumerate(value):
            yield f"{name}[{index}]", one


def _is_freed(saved: Any) -> bool:
    """Whether a saved tensor without data was freed rather than never there; no hook can run where there is no data."""
    try:
        saved.unpack()
    except RuntimeError as error:
        return _SECOND_TIME in str(error)
    return False


@functools.cache
def _raw_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_RAW))


def _attributes(node: Node) -> list[tuple[str, Tensor]]:
    """Tensors that a custom Function put on its context itself: a backward pass does not free these."""
    found: list[tuple[str, Tensor]] = []
    for name, value in getattr(node, "__dict__", {}).items():
        found += ((name, part) for part in _tensors(value))
    for part in getattr(node, "saved_for_forward", None) or ():
        if isinstance(part, Tensor):
            found.append(("saved_for_forward", part))
    return found


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list | dict):
        return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return []


def _plain_parts(tensor: Tensor) -> list[Tensor]:
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.layout is torch.jagged:
        return [tensor.values(), tensor.offsets()]  # type: ignore[attr-defined]
    return [tensor]
