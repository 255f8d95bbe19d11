"""What the ``backward`` of custom Functions returned, seen as they return it, before torch adapts it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.find import inside_functorch

Returned = Callable[[Any, tuple[Any, ...], tuple[Any, ...]], None]
MOST = 500


def custom_nodes(backward: Backward) -> list[Any]:
    """The nodes of custom Functions that a pass reaches; those of torch itself are not among them."""
    nodes: list[Any] = [node for node in backward.nodes if issubclass(type(node), BackwardCFunction)]
    return [node for node in nodes if not node._forward_cls.__module__.startswith("torch.")]


class Custom:
    """Listens to the ``backward`` of custom Functions during a pass.

    An attribute ``apply`` of the node takes the place of the method until the node has run.

    Attributes:
        listeners: Told of the node, what came in and what was returned.
    """

    def __init__(self) -> None:
        self.listeners: list[Returned] = []
        self._number = -1
        self._seen: dict[type, int] = {}

    def begin(self, backward: Backward) -> None:
        """Listen to the nodes of a pass; of each Function the first ``MOST`` ones in all."""
        if self._number == backward.record.number or inside_functorch():
            return
        self._number = backward.record.number
        for node in custom_nodes(backward):
            kind = type(node)
            self._seen[kind] = self._seen.get(kind, 0) + 1
            if self._seen[kind] <= MOST and "apply" not in vars(node):
                node.apply = partial(_applied, ref(self), ref(node), kind.apply)

    def told(self, node: Any, came: tuple[Any, ...], returned: Any) -> None:
        """Hand it on."""
        given = returned if isinstance(returned, tuple) else (returned,)
        for listener in self.listeners:
            listener(node, came, given)


def _applied(listening: ref[Custom], own: ref[Any], original: Callable[..., Any], *came: Any) -> Any:
    node = own()
    vars(node).pop("apply", None)
    result = original(node, *came)
    custom = listening()
    if custom is not None:
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                custom.told(node, came, result)
        except Exception:  # the program must go on
            return result
    return result


_known: WeakKeyDictionary[Audit, Custom] = WeakKeyDictionary()


def custom_of(audit: Audit) -> Custom:
    """What listens to the custom Functions of an audited program."""
    found = _known.get(audit)
    if found is None:
        found = _known[audit] = Custom()
    return found


def needed(node: Any) -> list[tuple[int, tuple[int, ...]]]:
    """The places among a Function's arguments whose gradient is needed, each with the shape of the argument."""
    places = [place for place, needs in enumerate(node.needs_input_grad) if needs]
    edges = [(child, index) for child, index in node.next_functions if child is not None]
    if len(places) != len(edges):
        return []
    found = []
    for place, (child, index) in zip(places, edges, strict=True):
        shape: tuple[int, ...] = tuple(child.variable.shape) if hasattr(child, "variable") else ()
        if not hasattr(child, "variable"):
            metadata = child._input_metadata
            if index >= len(metadata):
                return []
            shape = tuple(int(size) for size in metadata[index].shape)
        found.append((place, shape))
    return found


def argument(node: Any, place: int) -> str:
    """The name of an argument of ``forward``, as its author wrote it."""
    code = node._forward_cls.forward.__code__
    own = code.co_varnames[: code.co_argcount]
    first = 0 if _has_setup(node) else 1
    return own[place + first] if place + first < len(own) else f"argument {place}"


def _has_setup(node: Any) -> bool:
    base = torch.autograd.function._SingleLevelFunction.setup_context
    return node._forward_cls.setup_context is not base


def is_tensor(thing: Any) -> bool:
    """Whether it is a tensor."""
    return isinstance(thing, Tensor)


def name_of(node: Any) -> str:
    """The name of the Function of a node."""
    return str(node._forward_cls.__name__)
