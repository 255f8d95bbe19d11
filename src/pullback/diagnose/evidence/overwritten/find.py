"""Which saved tensor was changed in place before its backward, by what, and where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, Spot
from pullback.diagnose.evidence.freed.find import asking_frame, earlier_passes, reached, root_nodes, sequence
from pullback.diagnose.evidence.freed.flow import Loop, loops_around, written_in
from pullback.diagnose.evidence.freed.names import held_in, things_in
from pullback.diagnose.evidence.freed.operations import plain
from pullback.diagnose.evidence.overwritten.forms import Form, Way, aliases, forms
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.recorders.tape import Call, Value
from pullback.graph.recording.userfiles import user_files
from pullback.graph.saved import _raw, pieces
from pullback.graph.slots import is_told

MODIFIED = ("has been modified by an inplace operation", "modified by an in-place operation")
DETACHED = ("has been detached in-place",)
Kind = Literal[
    "step", "kept", "max_norm", "activation", "manual", "buffer", "detached", "view", "result", "input", "unknown"
]
ALIASING = frozenset({
    "detach", "__getitem__", "view", "reshape", "t", "transpose", "squeeze", "unsqueeze", "select", "narrow", "flatten",
    "permute", "expand", "diagonal", "unbind", "split", "chunk", "view_as", "T", "mT", "as_strided", "movedim", "ravel",
})  # fmt: skip
_RESULTS = frozenset({"result", "output", "out", "result0", "result1", "self_out", "values"})


@dataclass(frozen=True)
class Overwritten:
    """What is known of a saved tensor that was changed.

    Attributes:
        kind: The cause.
        asking: The frame that asked for the backward pass.
        reader: The node that had saved it.
        saved: What the node calls it.
        result: Whether it is what the node's operation returned, rather than an argument of it.
        name: What the user calls it; empty if nothing.
        tensor: The tensor, as it is now.
        versions: Its version when it was saved and now; -1 where unknown.
        spot: Where it was changed, if that was recorded.
        form: How the change is written, if it was found.
        thing: The optimizer or module that changed it, and the name of it.
        alias: The statement that made the view or the alias which was changed.
        certain: Whether the evidence leaves no other cause.
    """

    kind: Kind
    asking: Frame | None
    reader: Node | None
    saved: str
    result: bool
    name: str
    tensor: Tensor | None
    versions: tuple[int, int]
    spot: Spot | None = None
    form: Form | None = None
    thing: tuple[str, Any] | None = None
    alias: ast.Assign | None = None
    certain: bool = True

    @property
    def operation(self) -> str:
        """The operation that saved it: ``Sigmoid``, ``Native_Layer_Norm``."""
        name = re.sub(r"Backward\d*$", "", self.reader.name()) if self.reader is not None else "?"
        if hasattr(self.reader, "_forward_cls"):
            return name
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def overwritten(case: Case) -> Overwritten | None:
    """What is known of the saved tensor that the failing pass could not use; None if there is no such pass."""
    roots = root_nodes(case)
    if not roots:
        return None
    asking = asking_frame(case)
    found = re.search(r"is at version (\d+); expected version (\d+)", case.message)
    versions = (int(found.group(2)), int(found.group(1))) if found else (-1, -1)
    reader = _reader(reached(roots), case.message)
    if reader is None:
        return Overwritten("unknown", asking, None, "", False, "", None, versions, certain=False)
    node, saved, tensor = reader
    kind = getattr(node, "_forward_cls", None)
    own = kind is not None and re.search(rf"output \d+ of {kind.__name__}(Backward)?\b", case.message) is not None
    keys = {key for key, _, _ in pieces(tensor)}
    name, leaf = _name(case, tensor, keys)
    seen = Overwritten("unknown", asking, node, saved, own or saved in _RESULTS, name, tensor, versions, certain=False)
    return _by_tape(case, seen, keys, leaf=leaf) or _by_sight(case, seen, keys, leaf=leaf)


def _reader(graph: dict[Node, None], message: str) -> tuple[Node, str, Tensor] | None:
    """The node whose saved tensor is refused: the first that the pass met.

    Asked for outside of a pass, what an operation returned is refused in any case, for want of its node: of these, the
    one counts whose shape and version torch told.
    """
    results: list[tuple[Node, str, Tensor]] = []
    for node in sorted(graph, key=lambda each: -sequence(each)):
        for name, raw in _raw(node):
            value = None if raw is None else raw.data
            if not isinstance(value, Tensor) or raw.unpack_hook is not None:
                continue  # freed, never there, or packed by a hook, which is not to run now
            try:
                raw.unpack()
            except RuntimeError as error:
                if str(error).partition("Hint:")[0] == message.partition("Hint:")[0]:
                    return node, name, value
                if "in-place" in str(error) and is_told(value, message):
                    results.append((node, name, value))
    return results[0] if results else None


def _name(case: Case, tensor: Tensor, keys: set[int]) -> tuple[str, Tensor | None]:
    """What the user calls a saved tensor, and the leaf whose memory it is, if it is one's."""
    leaf = None
    named: list[tuple[bool, int, str]] = []
    for each in held_in(case.frames):
        if keys.isdisjoint(key for key, _, _ in pieces(each.tensor)):
            continue
        if each.tensor.is_leaf and each.tensor.requires_grad:
            leaf = each.tensor
        named.append((each.tensor.numel() != tensor.numel(), each.path.count(".") + each.path.count("["), each.path))
    owner = next((owner for key in keys if (owner := case.names.owners.get(key))), "")
    if owner and (leaf is not None or not named):
        return owner, leaf
    return (min(named)[2] if named else ""), leaf


def _with(seen: Overwritten, **changed: Any) -> Overwritten:
    return replace(seen, **changed)


def _by_tape(case: Case, seen: Overwritten, keys: set[int], *, leaf: Tensor | None) -> Overwritten | None:
    """The change as the tape heard it."""
    if case.tape is None or seen.reader is None:
        return None
    calls = list(case.tape.calls)
    number = sequence(seen.reader)
    last = max((index for index, call in enumerate(calls) if call.sequence <= number), default=-1)
    later = calls[last + 1 :]
    writes = [(call, value) for call in later for value, old, new in call.writes if new != old and _shares(value, keys)]
    if not writes:
        low, high = seen.versions
        writes = [
            (call, value)
            for call in later
            for value, old, new in call.writes
            if low <= old < new <= high and value.tensor() is None
        ]
    if not writes:
        return None
    call, value = writes[0]
    return _of_call(case, seen, call, value, leaf=leaf, keys=keys)


def _shares(value: Value, keys: set[int], depth: int = 0) -> bool:
    """Whether a value shares memory with a saved tensor: itself, or what it is a view or alias of."""
    tensor = value.tensor()
    if tensor is not None:
        return not keys.isdisjoint(key for key, _, _ in pieces(tensor))
    maker = value.maker
    if maker is None or depth > 8:
        return False
    if maker.name in ALIASING or any(value.number == each.number for each, _, _ in maker.writes):
        return any(_shares(each, keys, depth + 1) for each in maker.inputs if each is not value)
    return False


def _ways(value: Value) -> set[str]:
    """The operations by which a written value came from the saved tensor."""
    found: set[str] = set()
    waiting = [value]
    for _ in range(10):
        if not waiting:
            break
        maker = waiting.pop().maker
        if maker is not None and (maker.name in ALIASING or maker.name.endswith("_")):
            found.add(maker.name)
            waiting += [each for each in maker.inputs[:1] if each.maker is not maker]
    return found & ALIASING


def _of_call(
    case: Case, seen: Overwritten, call: Call, value: Value, *, leaf: Tensor | None, keys: set[int]
) -> Overwritten:
    spot = call.spot
    node = spot.node if spot is not None else None
    seen = _with(seen, spot=spot, certain=True)
    written = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    if call.name == "step" or written == "step":
        return _stepped(case, seen, keys)
    if call.name.startswith("embedding"):
        return _with(seen, kind="max_norm", thing=_module(case, keys))
    form, alias = _form(case, seen, spot, keys)
    seen = _with(seen, form=form, alias=alias)
    if form is None and isinstance(node, ast.Call) and (modules := _inplace_modules(case, call.name)):
        return _with(seen, kind="activation", thing=modules[0])
    if leaf is not None:
        return _with(seen, kind="manual")
    if _is_buffer(case, keys):
        return _with(seen, kind="buffer")
    ways = _ways(value)
    if "detach" in ways or (form is not None and form.way == "detached"):
        return _with(seen, kind="detached")
    if (
        alias is not None
        or (ways and (form is None or form.way == "whole"))
        or (form is not None and form.way == "view")
    ):
        return _with(seen, kind="view")
    return _with(seen, kind="result" if seen.result else "input")


def _form(case: Case, seen: Overwritten, spot: Spot | None, keys: set[int]) -> tuple[Form | None, ast.Assign | None]:
    """How a recorded change is written, and the statement that made its view."""
    statement = spot.statement if spot is not None else None
    if spot is None or statement is None:
        return None, None
    written = list(forms(spot.source, statement))
    node = spot.node
    if node is not None:
        inside = [each for each in written if each.node is node or each.node is statement]
        written = inside or written
    if not written:
        return None, None
    form = written[0]
    frame = next((each for each in case.frames if each.code is spot.code), None)
    known = _known(case, seen, frame, keys) if frame is not None else aliases(spot.source, spot.scope, {seen.name})
    return form, known.get(form.path, ("whole", None))[1]


def _known(case: Case, seen: Overwritten, frame: Frame, keys: set[int]) -> dict[str, tuple[Way, ast.Assign | None]]:
    """The variables of a frame that share memory with the saved tensor, and how."""
    held = [each for each in held_in([frame]) if _same(each.tensor, keys)]
    whole = [each for each in held if seen.tensor is not None and each.tensor.numel() == seen.tensor.numel()]
    own = [each.path for each in whole if each.tensor.is_leaf or each.tensor.requires_grad] or [
        each.path for each in whole
    ]
    first = {seen.name} if seen.name in own else set(own[:1])
    known = aliases(frame.source, frame.scope, first)
    for each in held:
        way: Way = "whole" if each in whole else "view"
        known.setdefault(
            each.path, ("detached" if not each.tensor.requires_grad and first and way == "whole" else way, None)
        )
    return known


def _same(tensor: Tensor, keys: set[int]) -> bool:
    return not keys.isdisjoint(key for key, _, _ in pieces(tensor))


def _stepped(case: Case, seen: Overwritten, keys: set[int]) -> Overwritten:
    """By an optimizer: with a graph that was kept on purpose, or between a forward pass and its backward.

    A graph was kept for this pass if an earlier one had the same root, or if the root is newer than that pass and leads
    back to what is older.
    """
    optimizers = _optimizers(case, keys)
    roots = {sequence(node) for node in root_nodes(case)} - {-1}
    old, new = sequence(seen.reader), min(roots, default=-1)
    kept = any(
        each.retain_graph and (roots & set(each.roots) or 0 <= old < each.nodes <= new)
        for each in earlier_passes(case)[1]
    )
    return _with(seen, kind="kept" if kept else "step", thing=optimizers[0] if optimizers else None)


def _optimizers(case: Case, keys: set[int]) -> list[tuple[str, Any]]:
    """The optimizers that train a tensor."""
    found = []
    for name, optimizer in things_in(case.frames, Optimizer):
        params = [each for group in optimizer.param_groups for each in group["params"]]
        if any(_same(each, keys) for each in params):
            found.append((name, optimizer))
    return found


def _modules_of(case: Case) -> Iterator[tuple[str, nn.Module]]:
    seen: set[int] = set()
    for name, module in things_in(case.frames, nn.Module):
        for inner, part in module.named_modules():
            if id(part) not in seen:
                seen.add(id(part))
                yield (f"{name}.{inner}" if inner else name), part


def _module(case: Case, keys: set[int]) -> tuple[str, Any] | None:
    """The embedding with a max_norm whose weight a saved tensor is."""
    for name, part in _modules_of(case):
        weight = part._parameters.get("weight")
        if getattr(part, "max_norm", None) is not None and weight is not None and _same(weight, keys):
            return name, part
    return None


def _inplace_modules(case: Case, operation: str) -> list[tuple[str, nn.Module]]:
    """The modules of an operation that work in place: ``relu`` and ``ReluBackward0`` are of a ReLU."""
    wanted = re.sub(r"backward\d*$|[^a-z0-9]", "", operation.lower())
    return [
        (name, part)
        for name, part in _modules_of(case)
        if getattr(part, "inplace", None) is True
        and wanted
        and (type(part).__name__.lower() == wanted or (wanted == "mul" and isinstance(part, nn.Dropout) and part.p > 0))
    ]


def _is_buffer(case: Case, keys: set[int]) -> bool:
    return any(
        _same(each, keys) for _, part in _modules_of(case) for each in part._buffers.values() if each is not None
    )


def _by_sight(case: Case, seen: Overwritten, keys: set[int], *, leaf: Tensor | None) -> Overwritten:
    """The change as the objects and the source tell it."""
    written = _written(case, seen, keys)
    kind: Kind
    if leaf is not None:
        normed = _module(case, keys)
        if normed is not None and not written:
            return _with(seen, kind="max_norm", thing=normed, certain=True)
        stepping = _optimizers(case, keys)
        if stepping and _steps(case):
            stepped = _stepped(case, seen, keys)
            return _with(stepped, certain=not written and not _loads(case))
        if written:
            return _with(seen, kind="manual", form=written[0][0], certain=len(written) == 1 and not stepping)
        if (updates := _unrecorded(seen.asking) or _in_unrecorded_functions(case)) and not stepping:
            return _with(seen, kind="manual", form=updates[0], certain=False)
        return seen
    if written:
        form, way, alias = _likeliest(written)
        kind = "detached" if way == "detached" else "view" if way == "view" else "result" if seen.result else "input"
        return _with(seen, kind=kind, form=form, alias=alias, certain=len(written) == 1)
    users = [
        node for node in reached(root_nodes(case)) if any(child is seen.reader for child, _ in node.next_functions)
    ]
    for node in users:
        if modules := _inplace_modules(case, node.name()):
            sure = seen.result and not isinstance(modules[0][1], nn.Dropout)  # any product could be that
            return _with(seen, kind="activation", thing=modules[0], certain=sure)
    elsewhere = _in_functions(case)
    if _is_buffer(case, keys):
        last = seen.name.rpartition(".")[2]
        own = [each for each in elsewhere if each.path.rpartition(".")[2] == last and "." in each.path]
        return _with(seen, kind="buffer", form=own[0] if own else None, certain=True)
    made = [each for each in elsewhere if _is_made_by(each, seen)] if seen.result else []
    kind = "result" if seen.result else "input"
    likely = made or elsewhere
    one = len({(each.path, each.source.scope(each.node)) for each in likely}) == 1
    return _with(seen, kind=kind, form=likely[0] if one else None, certain=bool(made) and one)


def _likeliest(written: list[tuple[Form, Way, ast.Assign | None]]) -> tuple[Form, Way, ast.Assign | None]:
    """Of several changes in one function, the one that comes after the value was kept: in a loop, or else the last."""
    first = written[0][0]
    same = [each for each in written if each[0].source.scope(each[0].node) is first.source.scope(first.node)]
    looped = [each for each in same if any(isinstance(around, Loop) for around in each[0].source.around(each[0].node))]
    return (looped or same)[-1]


def _is_made_by(form: Form, seen: Overwritten) -> bool:
    """Whether what is changed was assigned from a call of the operation that kept it: ``g = torch.sigmoid(x)``."""
    wanted = plain(seen.operation)
    for target in written_in(form.source.scope(form.node)).get(form.path, []):
        statement = form.source.statement(target)
        value = statement.value if isinstance(statement, ast.Assign) else None
        func = value.func if isinstance(value, ast.Call) else None
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if wanted and plain(name) == wanted and target.lineno < form.node.lineno:
            return True
    return False


def _in_functions(case: Case) -> list[Form]:
    """The changes in place that are written in the functions of the files that ran, but for counters."""
    own = {frame.file: frame.source for frame in case.frames}
    return _of_functions(own.values()) or _of_functions(_imported(case, own))


def _of_functions(sources: Iterable[Source]) -> list[Form]:
    found: list[Form] = []
    for source in sources:
        for form in forms(source, source.tree):
            scope = source.scope(form.node)
            if not isinstance(scope, ast.FunctionDef) or scope.name == "__init__" or not form.path:
                continue
            value = form.node.value if isinstance(form.node, ast.AugAssign) else None
            if not (isinstance(value, ast.Constant) and isinstance(value.value, int)):
                found.append(form)
    return found


def _imported(case: Case, own: Mapping[str, Source]) -> list[Source]:
    """The user's other files whose functions and classes the files that ran have imported."""
    files, found = user_files(()), {}
    for frame in case.frames:
        for thing in list(frame.module.values()):
            methods = list(vars(thing).values()) if isinstance(thing, type) else [thing]
            for code in [getattr(each, "__code__", None) for each in methods if isinstance(each, FunctionType)]:
                if code is not None and code.co_filename not in own and files.own_file(code.co_filename):
                    found[code.co_filename] = source_of(code.co_filename)
    return list(found.values())


def _unrecorded(asking: Frame | None) -> list[Form]:
    """The changes in place that the asking function writes under ``no_grad``."""
    if asking is None:
        return []
    return [
        form
        for form in forms(asking.source, asking.scope)
        if any(
            isinstance(each, ast.With) and "no_grad" in asking.source.text(each.items[0].context_expr)
            for each in asking.source.around(form.node)
        )
    ]


def _in_unrecorded_functions(case: Case) -> list[Form]:
    """The changes in place of what a loop goes through, in functions under ``no_grad``: an average of weights, say."""
    found: list[Form] = []
    for source in {frame.file: frame.source for frame in case.frames}.values():
        for form in forms(source, source.tree):
            scope = source.scope(form.node)
            around = list(source.around(form.node))
            looped = [each for each in around if isinstance(each, ast.For) and "parameters" in source.text(each.iter)]
            decorated = [*scope.decorator_list] if isinstance(scope, ast.FunctionDef) else []
            blocks = [each.items[0].context_expr for each in around if isinstance(each, ast.With)]
            if looped and any("no_grad" in source.text(each) for each in (*decorated, *blocks)):
                found.append(form)
    return found


def _loads(case: Case) -> bool:
    """Whether the functions that ran load weights, which changes them as a step does."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load_state_dict"
        for frame in case.frames
        for node in ast.walk(frame.scope)
    )


def _steps(case: Case) -> bool:
    """Whether the functions that ran call ``.step()``."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
        for frame in case.frames
        for node in ast.walk(frame.source.tree)
    )


def _written(case: Case, seen: Overwritten, keys: set[int]) -> list[tuple[Form, Way, ast.Assign | None]]:
    """The changes of the saved tensor that are written in the functions that ran, before they failed."""
    found: list[tuple[Form, Way, ast.Assign | None]] = []
    for frame in reversed(case.frames):
        scope = frame.scope
        known = _known(case, seen, frame, keys)
        looped = loops_around(frame)
        first = min((loop.lineno for loop in looped), default=frame.line + 1)
        for form in forms(frame.source, scope):
            if form.path not in known or (form.node.lineno > frame.line and form.node.lineno < first):
                continue
            if form.node.lineno >= frame.line and not looped:
                continue
            of, alias = known[form.path]
            way = form.way if form.way not in {"whole", "index"} or alias is None else of
            found.append((form, way, alias))
    return found
