"""The way back from a root: of each expression, whether its value ought to require grad."""

from __future__ import annotations

import ast
import types
from typing import Any

import torch
from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts import names
from pullback.diagnose.evidence.cuts.calls import Calls
from pullback.diagnose.evidence.cuts.found import Answer, Cut, Leaf, Region
from pullback.diagnose.evidence.cuts.questions import (
    backward_before,
    flag,
    has,
    holds_grad,
    is_integer,
    may_be_tensor,
    rebinds,
)
from pullback.diagnose.evidence.cuts.regions import region_of
from pullback.diagnose.evidence.slices import (
    DEPTH,
    Body,
    Part,
    definitions,
    dotted,
    reaching,
    sources_of,
)

# So many expressions are looked at.
MOST = 5000


class Walker:
    """Goes back from the root, and asks of each expression whether its value ought to require grad."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.cuts: list[Cut] = []
        self.weak: list[Cut] = []
        self.leaves: list[Leaf] = []
        self.suspects: list[Cut] = []
        self._known: dict[Any, Answer] = {}

    @staticmethod
    def quiet() -> Walker:
        """One that asks without noting anything here."""
        return _Quiet()

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
        if kind == "no_grad" and rebinds(part):
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
                answer = self.any(sources_of(part)) if answer is None else answer
                if answer is False:  # the index itself may be what was to be trained
                    self.status(Part(node.slice, part.body))
                return answer
            case ast.Call():
                return Calls(self, part, node).status()
        return self.any(sources_of(part))

    def _name(self, part: Part) -> Answer:
        node, body = part.node, part.body
        assert isinstance(node, ast.Name)
        sources = [Part(s.node, s.body, s.path + part.path, s.how, s.statement) for s in definitions(node, body)]
        settled = self._settled(node.id, node, body)
        thing: Any = body.live(node.id) if settled else None
        for key in part.path:
            thing = thing[key] if type(thing) in (list, tuple, dict) and has(thing, key) else None
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
            if each.how in ("write", "change") and is_integer(thing) and answer is not False:
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
        if node.attr == "data" and may_be_tensor(owner) and not (key and reaching(key, node, body)[0]):
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
            before = len(self.cuts), len(self.leaves), len(self.weak)
            answer = self._through(sources, part, thing)
            plain = before == (len(self.cuts), len(self.leaves), len(self.weak)) and isinstance(thing, Tensor)
            if plain and answer is not True:  # it is at hand, and a leaf: nobody has made it require grad
                self.leaves.append(Leaf(node, body, thing, answer is False))
                return False
            return answer
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
            call = backward_before(part)
            kind = "create_graph"
            if call is not None and flag(call, "create_graph", 2, part.body) is True:
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
        return Calls(self, Part(node.value, part.body, (1,)), node.value).picked(part)


class _Quiet(Walker):
    """Asks without noting anything."""

    def __init__(self) -> None:
        self.cuts, self.weak, self.leaves, self.suspects, self._known = [], [], [], [], {}
