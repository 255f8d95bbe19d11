"""Calls on the way back from a root: which cut it, which go through, which are the user's own."""

from __future__ import annotations

import ast
import math
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pullback.diagnose.evidence.cuts import names
from pullback.diagnose.evidence.cuts.found import Answer, Leaf
from pullback.diagnose.evidence.cuts.questions import flag, holds_grad, is_linear, once_behind, unmarked, values_behind
from pullback.diagnose.evidence.slices import (
    Part,
    called,
    definitions,
    dotted,
    entered,
    returns_of,
)

if TYPE_CHECKING:
    from pullback.diagnose.evidence.cuts.walker import Walker


class Calls:
    """What comes of one call."""

    def __init__(self, walker: Walker, part: Part, node: ast.Call) -> None:
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
                inner = Calls(self.walker, part, call)
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
                stripped = values_behind(each)
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
        if flag(self.node, "requires_grad", 99, self.body) is True:
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
        parts = [Part(maker, self.body) for maker in makers]
        for _ in range(3):  # through functions of the user's that return one
            calls = [(part.body, part.node.func) for part in parts if isinstance(part.node, ast.Call)]
            kinds = [kind for body, func in calls for kind in body.callees(func)]
            if any(isinstance(kind, type) and issubclass(kind, Distribution) for kind in kinds):
                return True
            parts = [each for part in parts for each in called(part)]
        return False

    def _creating(self) -> tuple[Answer, bool]:
        """The calls that make something new, or say whether it requires grad."""
        if flag(self.node, "requires_grad", 99, self.body) is True:
            return True, True
        if self.name == "requires_grad_":
            on = flag(self.node, "requires_grad", 0, self.body) is not False
            return (True if on else self.walker.any(self.operands)), True
        if self.things and self.things[0] is nn.Parameter:
            return flag(self.node, "requires_grad", 1, self.body) is not False, True
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
            if given is False and inner is not False and flag(self.node, "use_reentrant", 99, self.body) is True:
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
            marked = unmarked(kind)
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
        create = flag(self.node, "create_graph", 4, self.body)
        if create is not True:
            sure = True if answer is True and create is not None else None
            return self.walker.cut("create_graph", self.part, outputs, None if answer is None else (answer and sure))
        once = once_behind(part)
        if once is not None:
            return self.walker.cut("once", self.part, outputs, answer, once)
        linear = is_linear(part, self.walker.quiet().status)
        return self.walker.cut("linear", self.part, outputs, True if linear else None)
