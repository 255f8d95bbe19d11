"""Why a graph was freed before a backward pass needed it: where the pass enters what an earlier one has used up."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.autodiff.deep import free_gently
from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, frames_of
from pullback.diagnose.evidence.freed.flow import Loop, carried, loops_around, path_of, renewed_items, written_in
from pullback.diagnose.evidence.freed.names import Held, held_in
from pullback.diagnose.evidence.functions.classes import asked_frame
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.recorders.passes import Pass
from pullback.graph.recording.userfiles import user_files
from pullback.graph.saved import kept_by

SECOND_TIME = ("backward through the graph a second time", "saved intermediate values of the graph are freed")
Kind = Literal["same", "grads", "late", "trunk", "again", "carried", "attribute", "outside", "total", "unknown"]
# A graph is walked so far.
NODES = 200_000
_LEAF = 2**63
# What puts something into a container.
ADDING = frozenset({"append", "extend", "insert", "appendleft", "update"})


@dataclass(frozen=True)
class Entry:
    """Where a pass enters the freed part of its graph: the node that uses a value, and the node that made it."""

    user: Node | None
    freed: Node
    output: int


@dataclass(frozen=True)
class Name:
    """A name by which the freed value lives on, and what that says.

    Attributes:
        kind: What it says.
        held: The tensor and the way to it.
        loop: The loop over which it is carried, or before which it was made.
    """

    kind: Kind
    held: Held
    loop: Loop | None = None


@dataclass(frozen=True)
class Reentry:
    """What is known of a pass that met a freed graph.

    Attributes:
        kind: The cause.
        asking: The frame that asked for the pass.
        earlier: The pass that freed the graph, if it was recorded.
        entry: Where the pass enters the freed part, if that can be told.
        names: The names of the values that lead into it, those that explain it only.
        certain: Whether the evidence leaves no other cause.
    """

    kind: Kind
    asking: Frame | None
    earlier: Pass | None = None
    entry: Entry | None = None
    names: tuple[Name, ...] = field(default=())
    certain: bool = True

    @property
    def name(self) -> Name | None:
        """The first name."""
        return self.names[0] if self.names else None

    @property
    def call(self) -> ast.Call | None:
        """The call that asked for the pass."""
        node = self.asking.node if self.asking else None
        return node if isinstance(node, ast.Call) else None


def asking_frame(case: Case) -> Frame | None:
    """The user's frame that asked for the backward pass: a hook or a custom backward inside the pass is not it."""
    codes = {torch.Tensor.backward.__code__, torch.autograd.backward.__code__, torch.autograd.grad.__code__}
    files, met = user_files(()), -1
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code in codes and met >= 0:
            return case.frames[met]
        met += files.own(frame)
    return case.site


def sequence(node: Node | None) -> int:
    """The sequence number of a node; -1 for a leaf's, and for none."""
    number = -1 if node is None else int(node._sequence_nr())
    return number if number < _LEAF else -1


def reached(starts: Iterable[Node | None]) -> dict[Node, None]:
    """The nodes behind some nodes, themselves included; iterative."""
    stack = [node for node in starts if node is not None]
    seen = dict.fromkeys(stack)
    while stack and len(seen) < NODES:
        for child, _ in stack.pop().next_functions:
            if child is not None and child not in seen:
                seen[child] = None
                stack.append(child)
    free_gently(seen)
    return seen


def root_nodes(case: Case) -> list[Node]:
    """The nodes of the roots of the failing pass."""
    roots = case.asked.roots if case.asked else []
    found = [root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None) for root in roots]
    return [node for node in found if node is not None]


def earlier_passes(case: Case) -> tuple[Pass | None, list[Pass]]:
    """The failing pass, and those of its thread before it, the oldest first."""
    if not case.passes:
        return None, []
    failing = case.passes[-1]
    if failing.ended:
        return None, list(case.passes)
    return failing, [each for each in case.passes[:-1] if each.thread == failing.thread]


def reentry(case: Case) -> Reentry | None:
    """What is known of a pass that met a freed graph; None if nothing was asked of autograd."""
    roots = root_nodes(case)
    asking = asking_frame(case)
    if not roots:
        return None
    inner = asked_frame(case)
    if inner is not None and asking is not None and inner._frame is not asking._frame:
        return _within(case, inner, roots)
    before = earlier_passes(case)[1]
    freeing = [each for each in before if not each.retain_graph]
    numbers = {sequence(root) for root in roots} - {-1}
    again = next((each for each in freeing if numbers & set(each.roots)), None)
    if again is not None:
        return Reentry(_of_same(case, asking, again), asking, again)
    graph = reached(roots)
    held = [each for each in held_in(case.frames) if _node(each.tensor) is not None]
    early, sure = _early(case, graph, held, freeing)
    entries = _entries(roots, early)
    if not entries:
        return Reentry("unknown", asking, freeing[-1] if freeing else None, certain=False)
    entry = entries[0]
    earlier = next((each for each in freeing if sequence(entry.freed) < each.nodes), None)
    return _explained(case, asking, earlier, entries, early, held, certain=sure and earlier is not None)


def _within(case: Case, inner: Frame, roots: Sequence[Node]) -> Reentry:
    """Of a pass that a hook or a custom backward asked for while another ran: such passes are not recorded.

    What it asks for is the same each time it is called, so that a graph which is made outside of it is walked again.
    """
    freed = next((root for root in roots if kept_by(root).freed), None)
    entry = Entry(None, freed, 0) if freed is not None else None
    grads = case.asked is not None and case.asked.verb == "grad"
    return Reentry("grads" if grads else "same", inner, None, entry, (), False)


def _of_same(case: Case, asking: Frame | None, again: Pass) -> Kind:
    asked = case.asked
    assert asked is not None
    if asked.retain_graph and not _same_spot(asking, again):
        return "late"
    return "grads" if (asked.inputs is not None and not again.accumulates) or asked.verb == "grad" else "same"


def _same_spot(asking: Frame | None, earlier: Pass | None) -> bool:
    spot = earlier.spot if earlier is not None else None
    return (
        asking is not None and spot is not None and (spot.code, spot.instruction) == (asking.code, asking.instruction)
    )


def _node(tensor: Tensor) -> Node | None:
    with torch._C.DisableTorchFunction():
        try:
            return tensor.grad_fn
        except RuntimeError:  # a view that torch refuses to differentiate
            return None


def _early(
    case: Case, graph: dict[Node, None], held: Sequence[Held], freeing: Sequence[Pass]
) -> tuple[set[Node], bool]:
    """The nodes that were freed before the failing pass began, and whether that is certain.

    The failing pass frees what it runs until it fails, so that a freed node alone says little: what an earlier pass
    used is known by its root where that lives, from the tape, or as older than the latest pass.
    """
    freed = {node for node in graph if kept_by(node).freed}
    if case.asked is not None and case.asked.retain_graph:
        return _with_bare(graph, freed), True
    known: set[Node] = set()
    live = {sequence(node): node for node in [*graph, *(_node(each.tensor) for each in held)] if node is not None}
    for each in freeing:
        roots = [live[number] for number in each.roots if number >= 0 and number in live]
        used = set(reached(roots)) if len(roots) == len(each.roots) else _on_tape(case, each, graph)
        known |= {node for node in used if node in graph and sequence(node) >= 0}
    if known & freed:
        return known, True
    newest = max((each.nodes for each in freeing), default=0)
    if not newest:
        return _with_bare(graph, freed), False
    old = {node for node in freed if 0 <= sequence(node) < newest}
    return _with_bare({node: None for node in graph if sequence(node) < newest}, old), any(
        sequence(node) >= newest for node in graph
    )


def _with_bare(graph: Iterable[Node], freed: set[Node]) -> set[Node]:
    """Freed nodes, and the nodes that keep nothing between them: those that lead to a freed one."""
    found = set(freed)
    for node in sorted(graph, key=sequence):
        if (
            sequence(node) >= 0
            and any(child in found for child, _ in node.next_functions)
            and not kept_by(node).tensors
        ):
            found.add(node)
    return found


def _on_tape(case: Case, earlier: Pass, graph: Iterable[Node]) -> set[Node]:
    """The nodes of a graph that the tape knows behind an earlier pass's roots."""
    if case.tape is None:
        return set()
    calls = list(case.tape.calls)
    starts = [call.sequence for call in calls]
    makers = [next((call for call in reversed(calls) if call.sequence <= root), None) for root in earlier.roots]
    values = [value for call in makers if call is not None for value in call.outputs]
    numbers: set[int] = set()
    places = {call.number: index for index, call in enumerate(calls)}
    for call in case.tape.history(*values):
        index = places.get(call.number, len(calls))
        end = starts[index + 1] if index < len(starts) - 1 else call.sequence
        numbers.update(range(call.sequence, end))
    return {node for node in graph if sequence(node) in numbers}


def _entries(roots: Sequence[Node], early: set[Node]) -> list[Entry]:
    """The edges into the freed part, the first to be met first."""
    found = [Entry(None, root, 0) for root in roots if root in early]
    stack = [root for root in roots if root not in early]
    seen = set(stack)
    while stack:
        node = stack.pop()
        for child, output in node.next_functions:
            if child is None:
                continue
            if child in early:
                found.append(Entry(node, child, output))
            elif child not in seen:
                seen.add(child)
                stack.append(child)
    return sorted(found, key=lambda each: -sequence(each.freed))


def _explained(
    case: Case,
    asking: Frame | None,
    earlier: Pass | None,
    entries: Sequence[Entry],
    early: set[Node],
    held: Sequence[Held],
    *,
    certain: bool,
) -> Reentry:
    """The cause, by the names under which the freed values live on."""
    entry = entries[0]
    new = entry.user is not None and (earlier is None or sequence(entry.user) >= earlier.nodes)
    freed = {(each.freed, each.output) for each in entries}
    exact = [each for each in held if (_node(each.tensor), each.tensor.output_nr) in freed]
    looped = [each for each in exact if new and _is_looped_over(case, asking, each, earlier)]
    if looped and len(looped) == len(exact):  # each turn has an item of its own: what is freed is behind all of them
        return Reentry("trunk", asking, earlier, entry, (), certain)
    names = [_named(case, asking, each, earlier, new=new) for each in exact if each not in looped]
    telling = [each for each in names if each.kind not in {"trunk", "again"}]
    if not telling:
        telling = list(_taken_over(case, held, early, {each.freed for each in entries})) if new else []
    if telling:
        first = min(telling, key=lambda each: _RANK[each.kind])
        same = {each.held.path: each for each in reversed(telling) if each.kind == first.kind}
        chosen = [first, *(each for path, each in same.items() if path != first.held.path)]
        return Reentry(first.kind, asking, earlier, entry, tuple(chosen), certain)
    kind: Kind = "again" if new else "trunk"
    if case.asked and case.asked.retain_graph:
        kind = "late"
    elif not names and new and asking is not None and loops_around(asking):
        return Reentry("unknown", asking, earlier, entry, (), False)
    main = [each for each in names if _node(each.held.tensor) is entry.freed]
    return Reentry(kind, asking, earlier, entry, tuple(main or names)[:1], certain)


_RANK: dict[Kind, int] = {"grads": 0, "carried": 1, "total": 2, "attribute": 3, "outside": 4, "late": 5, "trunk": 6}


def _is_looped_over(case: Case, asking: Frame | None, held: Held, earlier: Pass | None) -> bool:
    """Whether a value is an item of what the loop around the pass goes through: ``for out in outs``."""
    if held.owner is not None or earlier is None or not _same_spot(asking, earlier):
        return False
    for loop in _loops(case, held):
        if not isinstance(loop, ast.For):
            continue
        if held.path != held.variable and any(path_of(each) == held.variable for each in ast.walk(loop.iter)):
            return True
        if any(path_of(each) == held.path for each in ast.walk(loop.target)):
            return True
    return False


def _named(case: Case, asking: Frame | None, held: Held, earlier: Pass | None, *, new: bool) -> Name:
    """What it says that the freed value still has this name."""
    if held.owner is not None and new:
        if held.tensor.numel() == 1 and isinstance(vars(held.owner).get(held.attribute), list | deque):
            return Name("total", held)  # losses or log-probabilities of an episode
        return Name("attribute" if attribute_is_carried(held) else "outside", held)
    for loop in _loops(case, held):
        if held.variable in carried(loop.body):
            return Name("total" if _adds(held.frame, loop, held.variable) else "carried", held, loop)
        if held.path != held.variable and fills(loop, held.variable):
            return Name("total" if held.tensor.numel() == 1 else "carried", held, loop)
        if held.variable in written_in(loop):
            return Name("again" if new else "trunk", held)
    outer = next(iter(loop for frame in reversed(case.frames) for loop in loops_around(frame)), None)
    if new and outer is None and _same_spot(asking, earlier):  # a function that is called twice: a closure, say
        return Name("outside", held)
    if outer is None or earlier is None or not new:
        return Name("again" if new else "trunk", held)
    if not _same_spot(asking, earlier):
        return Name("again", held)
    if (
        case.asked is not None
        and not steps_in(outer)
        and (case.asked.verb == "grad" or _indexed(asking, held.variable))
    ):
        return Name("grads", held, outer)
    return Name("outside", held, outer)


def _loops(case: Case, held: Held) -> list[Loop]:
    """The loops around the point where the variable's own frame was."""
    if held.shared and held.frame.code.co_name != "<module>":
        return []
    return loops_around(held.frame)


def _indexed(asking: Frame | None, variable: str) -> bool:
    """Whether the pass is asked for one element of a variable: ``y[i].backward()``."""
    node = asking.node if asking else None
    if not isinstance(node, ast.Call):
        return False
    of = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "backward" else None
    return any(
        isinstance(each, ast.Subscript) and path_of(each.value) == variable
        for each in ast.walk(of if of is not None else node)
    )


def steps_in(loop: ast.AST) -> bool:
    """Whether something calls ``.step()`` there."""
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "step"
        for each in ast.walk(loop)
    )


def fills(loop: ast.AST, variable: str) -> bool:
    """Whether a loop puts something into a container: ``losses.append(loss)``, ``losses[i] = loss``."""
    for node in ast.walk(loop):
        adds = isinstance(node, ast.Attribute) and node.attr in ADDING
        if adds and isinstance(node, ast.Attribute) and path_of(node.value) == variable:
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and path_of(node.value) == variable:
            return True
    return False


def update_of(frame: Frame, loop: Loop, variable: str) -> ast.stmt | None:
    """The statement of a loop that adds to a variable: ``total = total + x`` or ``total += x``."""
    for target in written_in(loop).get(variable, []):
        statement = frame.source.statement(target)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            return statement
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
            sides = (statement.value.left, statement.value.right)
            if isinstance(statement.value.op, ast.Add) and any(path_of(side) == variable for side in sides):
                return statement
    return None


def _adds(frame: Frame, loop: Loop, variable: str) -> bool:
    value = frame.local.get(variable)
    return update_of(frame, loop, variable) is not None and not (isinstance(value, Tensor) and value.numel() > 1)


def _taken_over(case: Case, held: Sequence[Held], early: set[Node], freed: set[Node]) -> Iterator[Name]:
    """Names that hold a new value by now, made from the freed one: a state that each turn takes over."""
    known: dict[Node, bool] = {}
    for each in held:
        node = _node(each.tensor)
        if node is None or node in early:
            continue
        if node not in known:
            known[node] = not freed.isdisjoint(reached([node]))
        if not known[node]:
            continue
        if each.owner is not None:
            if attribute_is_carried(each) or renewals(case, each):
                yield Name("attribute", each)
            continue
        for loop in _loops(case, each):
            if each.variable in carried(loop.body):
                adds = _adds(each.frame, loop, each.variable)
                yield Name("total" if adds else "carried", each, loop)
                break
            if each.variable not in written_in(loop) and renewals(case, each):
                yield Name("carried", each, loop)
                break


def renewals(case: Case, held: Held) -> list[tuple[Source, ast.Subscript]]:
    """The places that renew an item of a container from its last value: ``memory["h"] = f(memory["h"])``."""
    if not held.path.endswith("]"):
        return []
    try:
        key = ast.literal_eval(held.path[held.path.rindex("[") + 1 : -1])
    except (ValueError, SyntaxError):
        return []
    files = dict.fromkeys(frame.file for frame in (held.frame, *case.frames))
    sources = [source_of(file) for file in files]
    return [(source, node) for source in sources for node in renewed_items(source.tree, key)]


def attribute_is_carried(held: Held) -> bool:
    """Whether some method of its object reads an attribute before it writes it, or writes to a part of it."""
    return any(True for _ in carrying_methods(held)) or any(True for _ in filled_parts(held))


def filled_parts(held: Held) -> Iterator[tuple[str, ast.FunctionDef, ast.Subscript]]:
    """The places in methods that write to a part of a tensor, whose rest stays: ``self.memory[i] = x``."""
    if not held.path.endswith(f".{held.attribute}"):  # an item of a container
        return
    for file, function, path in methods_of(held):
        for each in ast.walk(function):
            if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and path_of(each.value) == path:
                yield file, function, each


def carrying_methods(held: Held) -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """The methods that read an attribute before they write it, as ``methods_of`` gives them."""
    for file, function, path in methods_of(held):
        if path in carried(function.body):
            yield file, function, path


def methods_of(held: Held) -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """The methods of the object that holds an attribute: file, function, and what the attribute is called there."""
    files = user_files(())
    for kind in type(held.owner).__mro__:
        for thing in list(vars(kind).values()):
            code = getattr(thing, "__code__", None)
            if code is None or not files.own_file(code.co_filename):
                continue
            function = source_of(code.co_filename).function_at(code.co_firstlineno, code.co_name)
            if isinstance(function, ast.FunctionDef) and function.args.args:
                yield code.co_filename, function, f"{function.args.args[0].arg}.{held.attribute}"


def cached_by(case: Case, found: Reentry) -> tuple[Source, ast.FunctionDef] | None:
    """The function under ``functools.lru_cache`` whose result was freed: by its line, or as the only one that ran."""
    made = case.line_of(found.entry.freed) if found.entry is not None else None
    files = user_files(())
    ran: dict[int, tuple[Source, ast.FunctionDef]] = {}
    for frame in case.frames:
        things = [*frame.local.values(), *frame.module.values()]
        kinds = {thing if isinstance(thing, type) else type(thing) for thing in things}
        own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in {"torch", "builtins", "numpy"}]
        for thing in [*things, *(each for kind in own for each in list(vars(kind).values()))]:
            if type(thing) is not functools._lru_cache_wrapper or not thing.cache_info().hits:
                continue
            code = getattr(inspect.unwrap(thing), "__code__", None)
            if code is None or not files.own_file(code.co_filename):
                continue
            source = source_of(code.co_filename)
            function = source.function_at(code.co_firstlineno, code.co_name)
            if isinstance(function, ast.FunctionDef):
                ran[id(code)] = source, function
    if made is not None:
        ran = {
            key: (source, function)
            for key, (source, function) in ran.items()
            if source.file == made.file and function.lineno <= made.line <= (function.end_lineno or 0)
        }
    return next(iter(ran.values())) if len(ran) == 1 else None
