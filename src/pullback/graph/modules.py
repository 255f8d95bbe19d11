"""Inside which module calls each node was made: as recorded, or else as far as the names of parameters tell."""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import nn

from pullback.graph.names import Names
from pullback.graph.recording.record import Call, Origin
from pullback.graph.values import ModuleCall

Calls = tuple[ModuleCall, ...]
_DOTTED = re.compile(r"\w+(\.\w+)*")
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def learn(names: Names, origins: Sequence[Origin | None]) -> None:
    """Name the modules that were recorded and that the caller did not name, with their parameters, by their class."""
    shared = {id(origin): origin for origin in origins if origin}
    for call in {call: None for origin in shared.values() for call in origin.calls}:
        module = call.module()
        if module is not None and id(module) not in names.modules:
            names.add(_unused(type(module).__name__, names), module)


def _unused(kind: str, names: Names) -> str:
    """The name of a class, with a number if another module has it already."""
    return next(
        name for number in itertools.count(1) if (name := f"{kind}_{number}" if number > 1 else kind) not in names.kinds
    )


def calls_of(
    children: Sequence[Sequence[int]],
    arities: Sequence[int],
    origins: Sequence[Origin | None],
    leaf_names: dict[int, str],
    names: Names,
) -> list[Calls]:
    """The module calls around each node, outermost first.

    Args:
        children: For each node the nodes that made what it was given; producers come before users.
        arities: How many arguments each node had, with those that need no gradient.
        origins: What was recorded of each node.
        leaf_names: The names of leaves that tell their module, by node: of parameters, and any with dots.
        names: The names of modules.
    """
    users: list[list[int]] = [[] for _ in children]
    for index, given in enumerate(children):
        for child in given:
            users[child].append(index)
    if any(origin and origin.calls for origin in origins):
        found = _recorded(origins, names)
    else:
        found = _guessed(children, arities, users, leaf_names, names)
    for leaf in leaf_names.keys() | {index for index, given in enumerate(children) if not given}:
        if users[leaf] and origins[leaf] is None:
            found[leaf] = found[users[leaf][0]]  # a leaf is drawn where it is first used
    return found


def _recorded(origins: Sequence[Origin | None], names: Names) -> list[Calls]:
    made: dict[Call, ModuleCall] = {}
    counts: dict[str, int] = defaultdict(int)

    def named(call: Call) -> ModuleCall:
        if call not in made:
            module = call.module()
            kind = "" if module is None else type(module).__name__
            name = names.modules.get(id(module), kind) if module is not None else "a module that is gone"
            made[call] = ModuleCall(name, kind, counts[name])
            counts[name] += 1
        return made[call]

    paths: dict[int, Calls] = {}  # by the identity of an origin, which nodes of one line and call share
    for origin in origins:
        if origin is not None and id(origin) not in paths:
            paths[id(origin)] = tuple(map(named, origin.calls))
    return [() if origin is None else paths[id(origin)] for origin in origins]


def _path(module: str, kinds: Mapping[str, type]) -> Calls:
    """The modules around a parameter of this one, as its name tells."""
    parts = module.split(".") if module else []
    prefixes = ["", *(".".join(parts[:count]) for count in range(1, len(parts) + 1))]
    by_name = prefixes[1:] if _DOTTED.fullmatch(module) else []  # as in a state dict, without the modules
    return tuple(
        ModuleCall(prefix, kind.__name__ if kind else "", 0)
        for prefix in prefixes
        if (kind := kinds.get(prefix)) or prefix in by_name
        if not (kind and issubclass(kind, _NEVER_CALLED))
    )


def _guessed(
    children: Sequence[Sequence[int]],
    arities: Sequence[int],
    users: Sequence[Sequence[int]],
    leaf_names: dict[int, str],
    names: Names,
) -> list[Calls]:
    """A node belongs to the module whose parameters it uses; one between two modules, to what both are inside."""
    own: list[Calls | None] = [None] * len(children)
    only: list[Calls | None] = [None] * len(children)  # a parameter, or made of it alone: its transpose, say
    path = functools.cache(functools.partial(_path, kinds=names.kinds))
    for index, given in enumerate(children):
        if not given:
            only[index] = path(leaf_names[index].rpartition(".")[0]) if index in leaf_names else None
            continue
        brought = [calls for child in given if (calls := only[child])]
        if not brought:
            continue
        own[index] = _common(brought)
        if arities[index] == 1:
            only[index] = own[index]
    before = list(own)
    for index, given in enumerate(children):
        if before[index] is None:
            before[index] = next((calls for child in sorted(given, reverse=True) if (calls := before[child])), None)
    after = list(own)
    for index in reversed(range(len(children))):
        if after[index] is None:
            after[index] = next((calls for user in users[index] if (calls := after[user])), None)
    return [
        mine if mine is not None else _common([before[index] or (), after[index] or ()])
        for index, mine in enumerate(own)
    ]


def _common(paths: Sequence[Calls]) -> Calls:
    """The calls that all paths begin with."""
    first = paths[0]
    if all(path is first for path in paths):
        return first
    depth = 0
    for depth, calls in enumerate(zip(*paths, strict=False), start=1):
        if calls.count(calls[0]) != len(calls):
            return first[: depth - 1]
    return first[:depth]
