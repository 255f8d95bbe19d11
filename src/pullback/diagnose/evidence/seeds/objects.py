"""Something that is no tensor was asked to run backward: what it is, and where the loss is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import attribute
from pullback.diagnose.evidence.seeds.roots import owner_of

_MISSING = object()


def backward_of(case: Case) -> tuple[Any, ast.expr | None] | None:
    """The object whose ``backward`` was missing, and how it is written."""
    if not isinstance(case.error, AttributeError) or not case.says("has no attribute 'backward'"):
        return None
    if case.site is None:
        return None
    node = owner_of(case.site, "backward")
    if node is None:
        return None
    thing = getattr(case.error, "obj", _MISSING)
    if thing is _MISSING or (thing is None and not case.says("'NoneType'")):
        thing = case.site.evaluated(node)
    return thing, node


def is_loss(thing: Any) -> bool:
    """Whether it is a scalar that can be differentiated."""
    if not issubclass(type(thing), Tensor):
        return False
    return bool(thing.requires_grad and not thing.is_nested and thing.numel() == 1)


def losses_in(thing: Any) -> list[tuple[str, Tensor]]:
    """The scalars in a tuple, a list, a mapping or an object that can be differentiated, each by its access."""
    return [(access, part) for access, part in _parts(thing) if is_loss(part)]


def tensors_in(thing: Any) -> list[tuple[str, Tensor]]:
    """The tensors in it that require grad, each by its access."""
    return [(access, part) for access, part in _parts(thing) if issubclass(type(part), Tensor) and part.requires_grad]


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    fields = attribute(thing, "_fields")
    if isinstance(thing, tuple) and isinstance(fields, tuple):
        yield from ((f".{name}", part) for name, part in zip(fields, tuple.__iter__(thing), strict=False))
    elif isinstance(thing, list | tuple):
        yield from ((f"[{number}]", part) for number, part in enumerate(thing))
    elif isinstance(thing, Mapping) and isinstance(thing, dict):
        named = type(thing) is not dict
        for key, part in dict.items(thing):
            plain = named and isinstance(key, str) and key in getattr(thing, "__dict__", {})
            yield f".{key}" if plain else f"[{key!r}]".replace("'", '"'), part
    else:
        yield from ((f".{name}", part) for name, part in getattr(thing, "__dict__", {}).items())
        for name in getattr(type(thing), "__slots__", ()):
            yield f".{name}", attribute(thing, name)


def chosen(losses: list[tuple[str, Tensor]]) -> tuple[str, Tensor] | None:
    """The loss among several scalars: the only one, or the only one that is called so."""
    if len(losses) == 1:
        return losses[0]
    exact = [each for each in losses if each[0].strip('.[]"') in ("loss", "total_loss")]
    return exact[0] if len(exact) == 1 else None
