"""Where the path from the parameters to the root was cut, and by what: by the tape, or by source and live values."""

from __future__ import annotations

import ast
import math
import os
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pullback.diagnose.case import Case
from pullback.diagnose.evidence import cut_names as names
from pullback.diagnose.evidence.frames import Spot, frames_of
from pullback.diagnose.evidence.slices import (
    DEPTH,
    Body,
    Part,
    called,
    definitions,
    dotted,
    entered,
    reaching,
    returns_of,
    scope_of,
    sources_of,
    steps_of,
    walk,
)
from pullback.diagnose.evidence.source import Function, Source, source_of
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

# So many expressions are looked at.
MOST = 5000
Answer = bool | None
Region = tuple[str, ast.AST, "Body"]


@dataclass(eq=False)
class Cut:
    """A place where the way from the parameters to the root ends.

    Attributes:
        kind: What cut it: ``detach``, ``no_grad``, ``numpy``, ...
        node: The expression whose value has no graph any more.
        body: The function of the user's in which it stands.
        operand: The expression whose graph is lost.
        sure: Whether the operand is known to have required grad.
        region: What turned the recording off, if that is the cause: a ``with``, a decorator, a call; and its file.
        exact: Whether it was recorded while it ran.
        name: The name of the operation.
        shape: The shape of the operand; None if it is not known.
    """

    kind: str
    node: ast.expr
    body: Body
    operand: ast.expr | None = None
    sure: bool = True
    region: Region | None = None
    exact: bool = False
    name: str = ""
    shape: tuple[int, ...] | None = None

    @property
    def source(self) -> Source:
        """Its file."""
        return self.body.source

    @property
    def statement(self) -> ast.stmt | None:
        """The statement with it."""
        return self.source.statement(self.node)

    @property
    def text(self) -> str:
        """The expression as it is written."""
        return " ".join(self.source.text(self.node).split())

    @property
    def operand_text(self) -> str:
        """The operand as it is written."""
        return " ".join(self.source.text(self.operand).split()) if self.operand is not None else ""

    def mark(self, what: str) -> Mark:
        """Its line."""
        return marked(self.source, self.node, what)

    def region_mark(self, what: str) -> Mark | None:
        """The line that turned the recording off."""
        if self.region is None:
            return None
        return marked(self.region[2].source, self.region[1], what)


@dataclass(eq=False)
class Leaf:
    """Where the way back ends without anything that requires grad."""

    node: ast.expr
    body: Body
    thing: Any


@dataclass(eq=False)
class Found:
    """All that was found of one root.

    Attributes:
        cuts: The cuts, the likeliest first.
        leaves: Where the other ways end.
        root: The root as it is written.
        answer: Whether something behind the root ought to require grad; None if that cannot be told.
        off: Whether recording is off in the end, with no block around it that would say so.
        unknown: The names of which one cannot tell.
    """

    cuts: list[Cut] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    root: Part | None = None
    answer: Answer = None
    off: bool = False
    suspects: list[Cut] = field(default_factory=list)


def marked(source: Source, node: ast.AST, what: str) -> Mark:
    """A line of the user's with an expression of it marked; of a block, its first line; of a function, its name."""
    scope = source.scope(node)
    name = scope.name if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else (
        "<lambda>" if isinstance(scope, ast.Lambda) else "<module>"
    )  # fmt: skip
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.With | ast.AsyncWith):
        node = node.items[0].context_expr
    span = source.span(node) if isinstance(node, ast.expr | ast.Expr) and line else None
    return Mark.at(Place(source.file, getattr(node, "lineno", line), name), what, span)


_KNOWN: WeakKeyDictionary[Case, Found] = WeakKeyDictionary()


def found_in(case: Case) -> Found:
    """All that there is to know of why the root of a case has no graph; found once for each case."""
    found = _KNOWN.get(case)
    if found is None:
        found = _KNOWN[case] = _look(case)
    return found


def cuts_of(case: Case) -> list[Cut]:
    """The places where the way from the parameters to the root of a case ends, the likeliest first."""
    return found_in(case).cuts


def concerns(case: Case) -> bool:
    """Whether a case is about a root without a graph: a tensor without one, or a number or array."""
    if isinstance(case.error, AttributeError):
        return case.says(*(f"'{kind}' object has no attribute 'backward'" for kind in names.NUMBERS))
    if isinstance(case.error, TypeError):
        roots = case.asked.roots if case.asked is not None else []
        return case.says(*(f"'{kind}' object is not iterable" for kind in names.NUMBERS)) and any(
            not isinstance(root, Tensor) for root in roots
        )
    return case.says("does not require grad and does not have a grad_fn")


def root_of(case: Case) -> ast.expr | None:
    """What was differentiated, as it is written, also where a library of the user's calls backward."""
    site = case.site
    if site is None:
        return None
    node = site.node
    if isinstance(case.error, AttributeError):
        if isinstance(node, ast.Call):
            node = node.func
        return node.value if isinstance(node, ast.Attribute) and node.attr == "backward" else None
    root = case.root
    if case.asked is not None and case.asked.method and case.call is not None:
        func = case.call.func
        if not isinstance(func, ast.Attribute) or func.attr != "backward":
            root = None
        elif case.call.args and any(site.evaluated(case.call.args[0]) is each for each in case.asked.tensors):
            root = case.call.args[0]  # accelerator.backward(loss)
    if root is None and case.call is not None and case.call.args:
        root = case.call.args[0]
    if isinstance(root, ast.List | ast.Tuple):
        number = next((number for number in range(len(root.elts)) if case.says(f"element {number} of tensors")), 0)
        root = root.elts[min(number, len(root.elts) - 1)] if root.elts else None
    return root


def _look(case: Case) -> Found:
    found = Found()
    node = root_of(case)
    if node is None or case.site is None:
        return found
    body = Body.of(case.frames)
    found.root = Part(node, body)
    walker = _Walker(case)
    found.answer = walker.status(found.root)
    found.cuts = walker.cuts
    found.leaves = walker.leaves
    found.suspects = walker.suspects
    found.off = not torch.is_grad_enabled()
    exact = _from_tape(case, walker)
    if exact:
        found.cuts = exact
    elif case.tape is not None:
        found.cuts = _confirmed(case, found.cuts)
    order = {id(cut): number for number, cut in enumerate(walker.cuts)}
    found.cuts.sort(key=lambda cut: (not cut.exact, not cut.sure, order.get(id(cut), len(order))))
    if _captured(case, found.root):
        for cut in found.cuts:
            if cut.region is not None:
                cut.kind = "closure"
    if not found.cuts:
        found.cuts = walker.weak
    return found


def _captured(case: Case, root: Part) -> bool:
    """Whether the root was made outside of the closure of an optimizer that asks for its gradient."""
    body = root.body
    if not isinstance(root.node, ast.Name) or body.is_local(root.node.id) or isinstance(body.scope, ast.Module):
        return False
    folder = f"optim{os.sep}"
    files = [frame.f_code.co_filename for frame, _, _ in frames_of(case.error.__traceback__)]
    last = max((number for number, file in enumerate(files) if file == body.source.file), default=0)
    return any(folder in file and not user_files(()).own_file(file) for file in files[:last])


class _Walker:
    """Goes back from the root, and asks of each expression whether its value ought to require grad."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.cuts: list[Cut] = []
        self.weak: list[Cut] = []
        self.leaves: list[Leaf] = []
        self.suspects: list[Cut] = []
        self._known: dict[Any, Answer] = {}

    def status(self, part: Part) -> Answer:
        """Whether a value ought to require grad; None if it cannot be told. Cuts on the way are noted."""
        key = (part.node, part.body.identity, part.path)
        if key in self._known or len(self._known) > MOST or part.body.depth > DEPTH:
            return self._known.get(key)
        self._known[key] = False
        answer = self._asked(part)
        if isinstance(part.node, ast.Call | ast.BinOp | ast.UnaryOp) and answer is not False:
            region = region_of(part.node, part.body)
            if region is not None:
                self._under(part, region, sure=answer is True)
                answer = False
        self._known[key] = answer
        return answer

    def knows(self, part: Part, answer: Answer) -> None:
        """Take an answer as given."""
        self._known[part.node, part.body.identity, part.path] = answer

    def any(self, parts: list[Part]) -> Answer:
        """Whether any of them ought to."""
        answers = [self.status(each) for each in parts]
        return True if True in answers else (None if None in answers else False)

    def cut(self, kind: str, part: Part, operand: Part | ast.expr | None, answer: Answer, name: str = "") -> Answer:
        """Note that the value has no graph any more where the operand had one."""
        if answer is not False:
            node = operand.node if isinstance(operand, Part) else operand
            assert isinstance(part.node, ast.expr)
            self.cuts.append(Cut(kind, part.node, part.body, node, answer is True, name=name))
        return False

    def _under(self, part: Part, region: Region, *, sure: bool) -> None:
        kind = region[0]
        if kind == "no_grad" and _rebinds(part):
            kind = "rebinding"
        self.cuts.append(Cut(kind, part.node, part.body, part.node, sure, region))

    def _asked(self, part: Part) -> Answer:
        node = part.node
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Lambda():
                return False
            case ast.Name():
                return self._name(part)
            case ast.Attribute():
                return self._attribute(part)
            case ast.Compare():
                return self._compare(part, node)
            case ast.Subscript():
                answer = self._indexed(part, node)
                return self.any(sources_of(part)) if answer is None else answer
            case ast.Call():
                return _Calls(self, part, node).status()
        return self.any(sources_of(part))

    def _name(self, part: Part) -> Answer:
        node, body = part.node, part.body
        assert isinstance(node, ast.Name)
        sources = [Part(s.node, s.body, s.path + part.path, s.how, s.statement) for s in definitions(node, body)]
        settled = self._settled(node.id, node, body)
        thing: Any = body.live(node.id) if settled else None
        for key in part.path:
            thing = thing[key] if type(thing) in (list, tuple, dict) and _has(thing, key) else None
        if holds_grad(thing):
            return True
        if isinstance(thing, nn.Module | type | types.ModuleType | torch.dtype | torch.device):
            return False
        if not sources or isinstance(thing, nn.Parameter):
            return self._end(part, thing)
        before = len(self.cuts), len(self.leaves), len(self.weak)
        answer = self._through(sources, part, thing)
        if (
            answer is False
            and isinstance(thing, Tensor)
            and before == (len(self.cuts), len(self.leaves), len(self.weak))
        ):
            self.leaves.append(Leaf(node, body, thing))
        if answer is True and isinstance(thing, Tensor) and settled and len(sources) == 1:
            self.suspects.append(Cut("unknown", sources[0].node, sources[0].body, sources[0].node))
        return answer

    def _through(self, sources: list[Part], part: Part, thing: Any) -> Answer:
        answers: list[Answer] = []
        for each in sources:
            answer = self.status(Part(each.node, each.body, each.path))
            if each.how in ("write", "change") and _is_integer(thing) and answer is not False:
                assert isinstance(each.node, ast.expr)
                self.cuts.append(Cut("int_buffer", each.node, each.body, each.node, answer is True))
                answer = False
            elif each.how == "change" and each.statement is not None and answer is not False:
                region = region_of(each.statement, each.body)
                if region is not None:
                    self.cuts.append(Cut(region[0], each.node, each.body, each.node, answer is True, region))
                    answer = False
            answers.append(answer)
        return True if True in answers else (None if None in answers else False)

    def _end(self, part: Part, thing: Any) -> Answer:
        if isinstance(thing, Tensor):
            self.leaves.append(Leaf(part.node, part.body, thing))
            return False
        if thing is not None:
            return False
        return None if isinstance(part.node, ast.Name) and part.node.id in part.body.parameters else False

    def _settled(self, key: str, node: ast.expr, body: Body) -> bool:
        """Whether what a name holds in the end is what it held here."""
        if isinstance(node, ast.Name) and not body.is_local(key):
            return True
        if body.frame is None or isinstance(body.source.parent(node), ast.comprehension):
            return key in body.own
        here = {(each.node, each.how) for each in reaching(key, node, body)[0]}
        return here == {(each.node, each.how) for each in reaching(key, body.here, body)[0]}

    def _attribute(self, part: Part) -> Answer:
        node, body = part.node, part.body
        assert isinstance(node, ast.Attribute)
        inner = Part(node.value, body)
        if node.attr in names.TOLD:
            return False
        key = dotted(node)
        owner = body.evaluated(node.value)
        if node.attr == "data" and _may_be_tensor(owner) and not (key and reaching(key, node, body)[0]):
            return self.cut("data", part, inner, self.status(inner))
        if node.attr == "grad" and (owner is None or isinstance(owner, Tensor)):
            return self._grad_attribute(part, owner)
        if node.attr == "indices" and (owner is None or "return_types" in type(owner).__module__):
            return self.cut("index", part, inner, self.status(inner), "indices")
        if node.attr in names.SAME and (owner is None or isinstance(owner, Tensor)):
            return self.status(inner)
        thing = body.evaluated(node)
        if holds_grad(thing):
            return True
        if isinstance(owner, types.ModuleType) or callable(thing):
            return False
        sources = definitions(node, body)
        if sources and not isinstance(thing, nn.Parameter):
            return self._through(sources, part, thing)
        if isinstance(thing, Tensor):
            self.leaves.append(Leaf(node, body, thing))
            return False
        return self.any(sources_of(part)) if owner is None else False

    def _grad_attribute(self, part: Part, owner: Any) -> Answer:
        assert isinstance(part.node, ast.Attribute)
        if isinstance(owner, Tensor) and owner.is_leaf and owner.grad is not None and owner.grad.requires_grad:
            return True
        inner = Part(part.node.value, part.body)
        if self.status(inner) is not False:
            call = _backward_before(part)
            kind = "create_graph"
            if call is not None and _flag(call, "create_graph", 2, part.body) is True:
                kind = "linear"
            node = call if call is not None else part.node
            self.weak.append(Cut(kind, node, part.body, part.node.value, name="grad"))
        return False

    def _compare(self, part: Part, node: ast.Compare) -> Answer:
        if any(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in node.ops):
            return False
        for each in sources_of(part):
            answer = self.status(each)
            if answer is not False:
                return self.cut("comparison", part, each, answer)
        return False

    def _indexed(self, part: Part, node: ast.Subscript) -> Answer:
        """Whether it is the second of ``x.max(1)``: the indices."""
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if key not in (1, "indices") or not isinstance(node.value, ast.Call):
            return None
        return _Calls(self, Part(node.value, part.body, (1,)), node.value).picked(part)


class _Calls:
    """What comes of one call."""

    def __init__(self, walker: _Walker, part: Part, node: ast.Call) -> None:
        self.walker, self.part, self.node, self.body = walker, part, node, part.body
        self.func = node.func
        self.name = self.func.attr if isinstance(self.func, ast.Attribute) else getattr(self.func, "id", "")
        self.owner = self.func.value if isinstance(self.func, ast.Attribute) else None
        self.owned = self.body.evaluated(self.owner)
        self.things = self.body.callees(self.func)
        self.library = isinstance(self.owned, types.ModuleType)
        self.first = self._first()

    def _first(self) -> Part | None:
        if self.owner is not None and not self.library and not isinstance(self.owned, type):
            return Part(self.owner, self.body)
        return Part(self.node.args[0], self.body) if self.node.args else None

    @property
    def operands(self) -> list[Part]:
        """What it is given, the object of a method among it."""
        given = [*self.node.args, *(each.value for each in self.node.keywords)]
        own = [self.owner] if self.owner is not None and not self.library else []
        return [Part(each, self.body) for each in (*own, *given)]

    def status(self) -> Answer:
        """Whether its result ought to require grad."""
        for thing in self.things:
            if (
                isinstance(self.owned, type)
                and issubclass(self.owned, torch.autograd.Function)
                and self.name == "apply"
            ):
                return self._function(self.owned)
            if thing is torch.autograd.grad:
                return self._grad()
            if isinstance(thing, nn.Module) or returns_of(thing, self.part):
                return self.walker.any([]) if not self.things else self._several()
        if isinstance(self.owned, type) and issubclass(self.owned, torch.autograd.Function) and self.name == "apply":
            return self._function(self.owned)
        for look in (self._cutting, self._creating, self._special):
            answer, told = look()
            if told:
                return answer
        picked = self.picked(self.part)
        return self.walker.any(self.operands) if picked is None else picked

    def picked(self, part: Part) -> Answer:
        """The indices of a call that gives values and indices; None if it is not that."""
        if (self.name in names.PAIRS and part.path[:1] in ((1,), ("indices",))) or (
            self.name in names.PAIRS and isinstance(part.node, ast.Subscript)
        ):
            several = self.name not in ("max", "min", "median") or len(self.node.args) + len(self.node.keywords) > (
                1 if self.library else 0
            )
            if several and self.first is not None:
                return self.walker.cut("index", part, self.first, self.walker.status(self.first), self.name)
        return None

    def _several(self) -> Answer:
        answers = []
        for thing in self.things:
            returned = returns_of(thing, self.part)
            if returned:
                answers.append(self.walker.any(returned))
            elif isinstance(thing, nn.Module):
                answers.append(self._module(thing))
        return True if True in answers else (None if None in answers else False)

    def _module(self, module: nn.Module) -> Answer:
        """A module of a library, or a container: its parameters, the user's modules in it, its arguments."""
        if type(module) is nn.Sequential:
            return self._sequence(module)
        own = [each for each in module.modules() if each is not module and entered(each, self.node, self.body)]
        before = len(self.walker.cuts)
        inner = self.walker.any([each for part in own[:100] for each in returns_of(part, self.part)])
        if len(self.walker.cuts) > before and inner is False:
            return False
        if any(parameter.requires_grad for parameter in module.parameters()):
            return True
        if any(True for _ in module.parameters()):
            self.walker.leaves.append(Leaf(self.func, self.body, module))
        given = [Part(each, self.body) for each in (*self.node.args, *(each.value for each in self.node.keywords))]
        return self.walker.any(given)

    def _sequence(self, module: nn.Sequential) -> Answer:
        """Each child is given what came from the one before it."""
        answer = self.walker.any([Part(each, self.body) for each in self.node.args])
        for child in module:
            given = ast.copy_location(ast.Name("_", ast.Load()), self.node)
            call = ast.copy_location(ast.Call(self.func, [given], []), self.node)
            part = Part(call, self.body)
            self.walker.knows(Part(given, self.body), answer)
            returned = returns_of(child, part)
            if returned:
                answer = self.walker.any(returned)
            else:
                inner = _Calls(self.walker, part, call)
                answer = inner._module(child)
        return answer

    def _cutting(self) -> tuple[Answer, bool]:
        """The calls that cut."""
        name, first = self.name, self.first
        if first is None:
            return None, False
        kind = self._kind()
        if kind is None:
            return None, False
        for each in [first] if kind != "tensor" else [Part(each, self.body) for each in self.node.args[:1]]:
            if kind in ("number", "numpy"):
                stripped = _stripped(each)
                return self.walker.cut(kind, self.part, stripped, self.walker.status(stripped), name), True
            if kind == "comparison":
                return self._compared(), True
            return self.walker.cut(kind, self.part, each, self._copied(kind, each), name), True
        return None, False

    def _copied(self, kind: str, operand: Part) -> Answer:
        if kind == "sample":
            held = holds_grad(self.owned)
            return True if held else self.walker.status(operand)
        return self.walker.status(operand)

    def _compared(self) -> Answer:
        for each in self.operands:
            answer = self.walker.status(each)
            if answer is not False:
                return self.walker.cut("comparison", self.part, each, answer, self.name)
        return False

    def _kind(self) -> str | None:
        name, thing = self.name, self.things[0] if self.things else None
        method = self.owner is not None and not self.library
        torchy = not self.library or str(getattr(self.owned, "__name__", "")).startswith("torch")
        if name in ("detach", "detach_") and torchy:
            return "detach"
        if method and name in ("numpy", "__array__"):
            return "numpy"
        if (method and name in ("item", "tolist")) or thing in (float, int, complex, bool) or self.owned is math:
            return "number"
        if self._makes_new(name, thing) and torchy:
            return "tensor"
        if self._casts(name):
            return "integer"
        if torchy and name in names.INDICES and not (name == "where" and len(self.node.args) != 1):
            return "index"
        if torchy and name in names.COMPARISONS and thing not in (any, all):
            return "comparison"
        if torchy and name in names.WITHOUT:
            return "no_derivative"
        if method and name in ("sample", "sample_n") and self._is_distribution():
            return "sample"
        return None

    def _makes_new(self, name: str, thing: Any) -> bool:
        """Whether it makes a new tensor of what it is given: ``torch.tensor(parts)``."""
        if _flag(self.node, "requires_grad", 99, self.body) is True:
            return False
        if name == "tensor" and (self.library or thing is torch.tensor):
            return True
        if name == "new_tensor" or name in names.CLASSES or thing is Tensor:
            return True
        if name in ("as_tensor", "asarray") and self.node.args and (self.library or thing is torch.as_tensor):
            return self._is_list(self.node.args[0])
        return False

    def _is_list(self, node: ast.expr) -> bool:
        if isinstance(node, ast.List | ast.Tuple | ast.ListComp):
            return True
        if type(self.body.evaluated(node)) in (list, tuple):
            return True
        if isinstance(node, ast.Name):
            return any(
                isinstance(each.node, ast.List | ast.ListComp | ast.Tuple) for each in definitions(node, self.body)
            )
        return False

    def _casts(self, name: str) -> bool:
        if self.owner is None or self.library:
            return False
        if name in names.CASTS and not self.node.args:
            return True
        if name not in ("to", "type"):
            return False
        for each in (*self.node.args, *(word.value for word in self.node.keywords if word.arg in ("dtype", None))):
            dtype = self.body.evaluated(each)
            if isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex):
                return True
            if name == "type" and (dotted(each) or str(dtype)).rpartition(".")[2] in names.INTEGER_CLASSES:
                return True
        return False

    def _is_distribution(self) -> bool:
        if self.owned is not None:
            return isinstance(self.owned, Distribution)
        makers = [self.owner] if isinstance(self.owner, ast.Call) else [
            each.node for each in (definitions(self.owner, self.body) if isinstance(self.owner, ast.Name) else [])
        ]  # fmt: skip
        for maker in makers:
            if isinstance(maker, ast.Call):
                kinds = self.body.callees(maker.func)
                if any(isinstance(kind, type) and issubclass(kind, Distribution) for kind in kinds):
                    return True
        return False

    def _creating(self) -> tuple[Answer, bool]:
        """The calls that make something new, or say whether it requires grad."""
        if _flag(self.node, "requires_grad", 99, self.body) is True:
            return True, True
        if self.name == "requires_grad_":
            on = _flag(self.node, "requires_grad", 0, self.body) is not False
            return (True if on else self.walker.any(self.operands)), True
        if self.things and self.things[0] is nn.Parameter:
            return _flag(self.node, "requires_grad", 1, self.body) is not False, True
        if self.name in names.NEW:
            return False, True
        if self.name == "rsample" and holds_grad(self.owned):
            return True, True
        return None, False

    def _special(self) -> tuple[Answer, bool]:
        """``torch.utils.checkpoint.checkpoint`` with a reentrant pass."""
        if self.name == "checkpoint" and self.node.args:
            given = self.walker.any([Part(each, self.body) for each in self.node.args[1:]])
            inner = self._called_with(self.node.args[0], self.node.args[1:])
            if given is False and inner is not False and _flag(self.node, "use_reentrant", 99, self.body) is True:
                return self.walker.cut("checkpoint", self.part, self.node.args[0], inner), True
            return inner, True
        return None, False

    def _called_with(self, func: ast.expr, args: list[ast.expr]) -> Answer:
        things = self.body.callees(func)
        if not things:
            return None
        returned = [each for thing in things for each in returns_of(thing, self.part)]
        modules = [thing for thing in things if isinstance(thing, nn.Module)]
        if any(parameter.requires_grad for module in modules for parameter in module.parameters()):
            return True
        return self.walker.any(returned)

    def _function(self, kind: type) -> Answer:
        """``Function.apply``: only tensors that are arguments themselves are seen."""
        hidden: tuple[ast.expr, Answer] | None = None
        answers: list[Answer] = []
        for node in self.node.args:
            answer = self.walker.status(Part(node, self.body))
            if not isinstance(node, ast.Starred) and (self._is_list(node) or self._is_dict(node)):
                if answer is not False:
                    hidden = node, answer
            else:
                answers.append(answer)
        if True in answers or (None in answers and hidden is None):
            marked = _unmarked(kind)
            if marked:
                return self.walker.cut("marked", self.part, self.node.args[0] if self.node.args else None, True)
            return True if True in answers else None
        if hidden is not None:
            return self.walker.cut("hidden", self.part, hidden[0], hidden[1], kind.__name__)
        return False

    def _is_dict(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Dict | ast.DictComp) or type(self.body.evaluated(node)) is dict

    def _grad(self) -> Answer:
        """``torch.autograd.grad``: its result has a graph only with ``create_graph=True``, and if it depends on one."""
        given = next((each.value for each in self.node.keywords if each.arg == "outputs"), None)
        outputs = given or (self.node.args[0] if self.node.args else None)
        if outputs is None:
            return False
        part = Part(outputs, self.body)
        answer = self.walker.status(part)
        flag = _flag(self.node, "create_graph", 4, self.body)
        if flag is not True:
            sure = True if answer is True and flag is not None else None
            return self.walker.cut("create_graph", self.part, outputs, None if answer is None else (answer and sure))
        once = once_behind(part)
        if once is not None:
            return self.walker.cut("once", self.part, outputs, answer, once)
        linear = is_linear(part)
        return self.walker.cut("linear", self.part, outputs, True if linear else None)


def region_of(node: ast.AST, body: Body) -> Region | None:
    """What turned recording off around a point of the program, if anything: the innermost that says so."""
    inner: ast.AST = node
    for each in body.source.around(node):
        if isinstance(each, ast.With | ast.AsyncWith) and inner in each.body:
            for context in reversed(each.items):
                mode = _mode(context.context_expr, body)
                if mode is not None:
                    return (mode, each, body) if mode != "on" else None
        if isinstance(each, Function):
            switched = _switched(node, body)
            if switched is not None:
                return switched if switched[0] != "on" else None
            for decorator in getattr(each, "decorator_list", []):
                mode = _mode(decorator, body)
                if mode is not None:
                    return (f"decorator_{mode}", decorator, body) if mode != "on" else None
            return _from_caller(body)
        inner = each
    switched = _switched(node, body)
    return switched if switched is not None and switched[0] != "on" else None


def _mode(node: ast.expr, body: Body) -> str | None:
    """``no_grad``, ``inference``, ``set_grad`` or ``on`` of a context or decorator; None if it is another."""
    func = node.func if isinstance(node, ast.Call) else node
    thing = body.evaluated(func)
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if isinstance(thing, type):
        name = thing.__name__
    if name == "no_grad":
        return "no_grad"
    if name == "inference_mode":
        off = isinstance(node, ast.Call) and _flag(node, "mode", 0, body) is False
        return None if off else "inference"
    if name == "enable_grad":
        return "on"
    if name == "set_grad_enabled" and isinstance(node, ast.Call):
        on = _flag(node, "mode", 0, body)
        return None if on is None else ("on" if on else "set_grad")
    return None


def _switched(node: ast.AST, body: Body) -> Region | None:
    """A plain call of ``torch.set_grad_enabled`` before a point, in its function or in what is around that."""
    here: Body | None = body
    use = body.source.statement(node)
    while here is not None:
        last: tuple[int, ast.Expr, str] | None = None
        for each in walk(here.scope):
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and _sets(each.value):
                mode = _mode(each.value, here)
                before = use is None or each.lineno < use.lineno
                if mode is not None and before and (last is None or each.lineno > last[0]):
                    last = each.lineno, each, mode
        if last is not None:
            return last[2], last[1], here
        here = here.outer
        use = here.here if here is not None else None
        if here is not None and use is None:
            return None
    return None


def _sets(call: ast.Call) -> bool:
    return (dotted(call.func) or "").rpartition(".")[2] == "set_grad_enabled"


def _from_caller(body: Body) -> Region | None:
    """A block around the call of a function that is still running."""
    frames = body.frames
    number = next((number for number, each in enumerate(frames) if each is body.frame), 0)
    if body.frame is None or number == 0 or frames[number - 1].node is None:
        return None
    node = frames[number - 1].node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
        return None  # an optimizer's step turns recording on for its closure
    assert node is not None
    return region_of(node, Body.of(frames, number - 1))


def holds_grad(thing: Any, depth: int = 0) -> bool:
    """Whether something that is alive requires grad, or has it inside."""
    if isinstance(thing, Tensor):
        return thing.requires_grad
    if depth > 3:
        return False
    if type(thing) in (list, tuple, set):
        return any(holds_grad(each, depth + 1) for each in list(thing)[:1000])
    if isinstance(thing, tuple):
        return any(holds_grad(each, depth + 1) for each in thing)
    if type(thing) is dict:
        return any(holds_grad(each, depth + 1) for each in list(thing.values())[:1000])
    if isinstance(thing, Distribution):
        return any(holds_grad(each, depth + 1) for each in vars(thing).values() if not isinstance(each, type))
    return False


def once_behind(part: Part) -> str | None:
    """The name of a custom Function behind a value whose backward can be differentiated once only."""
    for step in steps_of(part):
        func = step.node.func if isinstance(step.node, ast.Call) else None
        if not isinstance(func, ast.Attribute) or func.attr != "apply":
            continue
        kind = step.part.body.evaluated(func.value)
        if isinstance(kind, type) and issubclass(kind, torch.autograd.Function) and _is_once(kind.backward):
            return kind.__name__
    return None


def _is_once(backward: Any) -> bool:
    code = getattr(backward, "__code__", None)
    return code is not None and "once_differentiable" in code.co_qualname


def is_linear(part: Part) -> bool:
    """Whether nothing but linear operations can be seen behind a value."""
    for step in steps_of(part):
        node = step.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult | ast.Div):
            sides = [node.right] if isinstance(node.op, ast.Div) else [node.left, node.right]
            carrying = [side for side in sides if _Walker.status(_Quiet(), Part(side, step.part.body)) is not False]
            if len(carrying) > (0 if isinstance(node.op, ast.Div) else 1):
                return False
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub):
            return False
        elif isinstance(node, ast.Call) and not called(step.part):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            thing = step.part.body.evaluated(node.func)
            known = name in names.LINEAR or name in names.NEW or isinstance(thing, nn.Linear | nn.Conv2d | nn.Conv1d)
            if not known and _Walker.status(_Quiet(), Part(node, step.part.body)) is not False:
                return False
    return True


class _Quiet(_Walker):
    """Asks without noting anything."""

    def __init__(self) -> None:
        self.cuts, self.weak, self.leaves, self.suspects, self._known = [], [], [], [], {}


def _stripped(part: Part) -> Part:
    """What is left of ``x.detach().cpu()`` before ``.numpy()``: ``x``."""
    node = part.node
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names.CARRIED:
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return Part(node, part.body)


def _flag(call: ast.Call, name: str, position: int, body: Body) -> bool | None:
    """A flag of a call: as it was given, False if it was not, None if it cannot be told."""
    given = next((each.value for each in call.keywords if each.arg == name), None)
    if given is None and position < len(call.args):
        given = call.args[position]
    if given is None:
        return None if any(each.arg is None for each in call.keywords) else (name in ("mode", "requires_grad")) and (
            position < 99
        )  # fmt: skip
    value = body.evaluated(given)
    return value if isinstance(value, bool) else None


def _may_be_tensor(thing: Any) -> bool:
    return thing is None or isinstance(thing, Tensor)


def _is_integer(thing: Any) -> bool:
    return isinstance(thing, Tensor) and not (thing.dtype.is_floating_point or thing.dtype.is_complex)


def _has(thing: Any, key: Any) -> bool:
    return key in thing if type(thing) is dict else isinstance(key, int) and -len(thing) <= key < len(thing)


def _rebinds(part: Part) -> bool:
    """Whether it is the new value of a name that it was computed from: ``w = w - lr * w.grad``."""
    statement = part.body.source.statement(part.node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    key = dotted(statement.targets[0])
    inside = list(ast.walk(statement.value))
    mentions = any(isinstance(each, ast.Name | ast.Attribute) and dotted(each) == key for each in inside)
    return key is not None and mentions and isinstance(statement.value, ast.BinOp)


def _unmarked(kind: type) -> bool:
    """Whether the forward of a custom Function says that its outputs have no gradient."""
    forward = getattr(kind, "forward", None)
    both = [forward, getattr(kind, "setup_context", None)]
    return any(
        "mark_non_differentiable" in code.co_names
        for each in both
        if (code := getattr(each, "__code__", None)) is not None
    )


def _backward_before(part: Part) -> ast.Call | None:
    """The backward call before a ``.grad``, in the same function or module."""
    line = part.node.lineno
    found = None
    for node in walk(part.body.scope):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "backward":
            continue
        if node.lineno < line and (found is None or node.lineno > found.lineno):
            found = node
    return found


@dataclass(eq=False)
class Switch:
    """A statement that switches recording, or ``requires_grad``, off.

    Attributes:
        node: The expression.
        source: Its file.
        outermost: The statement with it; of a loop around it, the loop.
    """

    node: ast.expr
    source: Source
    outermost: ast.stmt | None = None

    def mark(self, what: str) -> Mark:
        """Its line."""
        return marked(self.source, self.node, what)


def sources_at(case: Case) -> list[Source]:
    """The files that the traceback leads through, and the user's modules that they see."""
    found: dict[str, Source] = {}
    for frame in reversed(case.frames):
        found.setdefault(frame.file, frame.source)
        for thing in list(frame.module.values()):
            file = getattr(thing, "__file__", None) if isinstance(thing, types.ModuleType) else None
            code = getattr(getattr(thing, "__init__", None) if isinstance(thing, type) else thing, "__code__", None)
            file = file or getattr(code, "co_filename", None)
            if isinstance(file, str) and file not in found and user_files(()).own_file(file):
                found[file] = source_of(file)
    return list(found.values())


def switches_of(case: Case) -> list[Switch]:
    """The plain calls ``torch.set_grad_enabled(False)`` in the user's files."""
    return [
        Switch(node.value, source, node)
        for source in sources_at(case)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _sets(node.value)
        and node.value.args and isinstance(node.value.args[0], ast.Constant) and node.value.args[0].value is False
    ]  # fmt: skip


def freezes_of(case: Case) -> list[Switch]:
    """The lines that switched ``requires_grad`` off: those that ran, if there is a tape, or all of the user's."""
    recorded = [
        call.spot for call in (case.tape.calls if case.tape is not None else ())
        if call.name in ("requires_grad_", "set requires_grad") and call.spot is not None
        and not any(each.requires_grad for each in call.outputs or [value for value, _, _ in call.writes])
    ]  # fmt: skip
    lines = {(spot.file, spot.line) for spot in recorded}
    found = []
    for source in sources_at(case):
        for node in ast.walk(source.tree):
            line = getattr(node, "lineno", 0)
            made = isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("Parameter")
            if _freezes(node) and (not lines or made or (source.file, line) in lines):
                target = node.targets[0] if isinstance(node, ast.Assign) else node
                assert isinstance(target, ast.expr)
                found.append(Switch(target, source, _outermost(source, node)))
    return found


def _freezes(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
        return (
            isinstance(target, ast.Attribute) and target.attr == "requires_grad"
            and isinstance(value, ast.Constant) and value.value is False
        )  # fmt: skip
    if isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("Parameter"):
        words = [each.value for each in node.keywords if each.arg == "requires_grad"]
        return bool(words) and isinstance(words[0], ast.Constant) and words[0].value is False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        given = [*node.args, *(each.value for each in node.keywords)]
        return bool(given) and isinstance(given[0], ast.Constant) and given[0].value is False
    return False


def _outermost(source: Source, node: ast.AST) -> ast.stmt | None:
    found = None
    for each in source.around(node):
        if isinstance(each, Function | ast.ClassDef):
            break
        if isinstance(each, ast.For | ast.While) or (isinstance(each, ast.stmt) and found is None):
            found = each
    return found


# What the tape tells.


def _from_tape(case: Case, walker: _Walker) -> list[Cut]:
    """The recorded calls on the way to the root that had an input with a graph and gave a value without."""
    if case.tape is None:
        return []
    found: list[Cut] = []
    for call, given in _cutting_calls(case.values):
        cut = _as_cut(case, call, given, walker)
        if cut is not None and all((cut.kind, cut.node) != (each.kind, each.node) for each in found):
            found.append(cut)
    return found


def _cutting_calls(roots: list[Value]) -> Iterator[tuple[Call, Value]]:
    waiting = {
        value.maker.number: value.maker for value in roots if value.maker is not None and not value.requires_grad
    }
    seen = 0
    while waiting and seen < MOST:
        seen += 1
        call = waiting.pop(max(waiting))
        given = next((value for value in call.inputs if value.requires_grad), None)
        if given is not None:
            yield call, given
            continue
        for value in call.inputs:
            if value.maker is not None and value.maker.number < call.number:
                waiting[value.maker.number] = value.maker


def _as_cut(case: Case, call: Call, given: Value, walker: _Walker) -> Cut | None:
    spot = call.spot
    if spot is None or call.name in ("requires_grad_", "set requires_grad") or _in_function(spot):
        return None
    near = [cut for cut in walker.cuts if _same_line(cut, spot)]
    near = [cut for cut in near if cut.node is spot.node] or [cut for cut in near if cut.kind == kind_of(call)] or near
    if len(near) == 1:
        near[0].exact, near[0].sure, near[0].shape = True, True, given.shape
        near[0].name = near[0].name or call.name
        return near[0]
    node = spot.node
    if node is None:
        return None
    body = next((Body.of(case.frames, n) for n, each in enumerate(case.frames) if each.code is spot.code), None)
    body = body or Body(spot.source, scope_of(spot), _globals_of(case, spot), case.frames)
    kind, region = kind_of(call), None
    if call.name == "grad" and isinstance(node, ast.Call):
        kind = "linear" if _flag(node, "create_graph", 4, body) is True else "create_graph"
    if kind == "off":
        region = region_of(node, body)
        regions = [cut for cut in walker.cuts if cut.region is not None]
        name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if region is None and regions:
            region = regions[0].region
        if region is None and name not in ("sample", "sample_n"):
            region = _left_off(case)
        kind = region[0] if region is not None else ("sample" if name in ("sample", "sample_n") else "set_grad")
        if kind == "no_grad" and _rebinds(Part(node, body)):
            kind = "rebinding"
    return Cut(kind, node, body, _operand(node), True, region, True, call.name, given.shape)


def _left_off(case: Case) -> Region | None:
    """The one call that turned recording off for all that came after."""
    switches = switches_of(case)
    if len(switches) != 1:
        return None
    source = switches[0].source
    return "set_grad", switches[0].node, Body(source, source.scope(switches[0].node), {}, case.frames)


def kind_of(call: Call) -> str:
    """What a recorded call that cuts is: by its name and by what it gave."""
    made = [*call.outputs, *(value for value, _, _ in call.writes)]
    integer = bool(made) and not (made[0].dtype.is_floating_point or made[0].dtype.is_complex)
    if call.name in ("detach", "detach_"):
        return "detach"
    if call.name in ("tensor", "as_tensor", "asarray", "new_tensor"):
        return "tensor"
    if integer and call.writes:
        return "int_buffer"
    if integer and call.name in names.INDICES | names.PAIRS:
        return "index"
    if integer and (call.name in names.CASTS or call.name in ("to", "type", "type_as")):
        return "integer"
    if integer and made[0].dtype is torch.bool:
        return "comparison"
    if not call.grad:
        return "off"
    return "index" if integer else "no_derivative"


def _operand(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not (isinstance(node.func.value, ast.Name) and node.args):
            return node.func.value
        return node.args[0] if node.args else None
    return node.value if isinstance(node, ast.Attribute) else node


def _in_function(spot: Spot) -> bool:
    """Whether it is in a custom Function, where nothing is recorded anyway."""
    scope = scope_of(spot)
    around = [each for each in spot.source.around(scope) if isinstance(each, ast.ClassDef)]
    own = isinstance(scope, ast.FunctionDef) and scope.name in ("forward", "backward", "setup_context", "vjp", "jvp")
    return own and bool(around) and any((dotted(each) or "").endswith("Function") for each in around[0].bases)


def _same_line(cut: Cut, spot: Spot) -> bool:
    node = cut.node
    return cut.source.file == spot.file and node.lineno <= spot.line <= (node.end_lineno or node.lineno)


def _globals_of(case: Case, spot: Spot) -> Mapping[str, Any]:
    import sys  # noqa: PLC0415

    for frame in case.frames:
        if frame.file == spot.file:
            return frame.module
    return next((vars(each) for each in list(sys.modules.values()) if getattr(each, "__file__", None) == spot.file), {})


def _confirmed(case: Case, cuts: list[Cut]) -> list[Cut]:
    """The cuts at whose lines a call was recorded that had an input with a graph; all, if that is so of none."""
    assert case.tape is not None
    lines: set[tuple[str, int]] = set()
    for call in case.tape.calls:
        if call.spot is not None and any(value.requires_grad for value in call.inputs):
            lines.add((call.spot.file, call.spot.line))
    kept = [
        cut for cut in cuts
        if any((cut.source.file, line) in lines for line in range(cut.node.lineno, (cut.node.end_lineno or 0) + 1))
    ]  # fmt: skip
    for cut in kept:
        cut.sure = True
    return kept or cuts
