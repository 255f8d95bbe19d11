"""Parameters that an optimizer steps although no pass reaches them, and the calls that cut them from the loss."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import Function
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.recorders.spots import spot_of
from pullback.diagnose.recorders.tape import Call, Tape, Value
from pullback.diagnose.values import Mark, Subject
from pullback.graph.values import Place

# So many calls behind a root are looked at.
MOST = 5000
# So many calls under no_grad are remembered with their callers between two passes.
CALLERS = 400
# What tells nothing of the values that it is given, or changes only what is required of a tensor.
UNRELATED = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "requires_grad_", "set requires_grad", "set grad", "step", "retain_grad",
    "register_hook", "allclose", "equal", "isnan", "isfinite", "isinf", "uniform_", "normal_", "zero_", "fill_",
})  # fmt: skip
OFF = re.compile(r"\b(no_grad|inference_mode|set_grad_enabled)\b(?!.*\bTrue\b)")


@dataclass(frozen=True)
class CutAt:
    """A call whose operand had a graph to parameters, and whose result has none.

    Attributes:
        name: What was called: ``detach``, ``get data``, ``linear``.
        spot: Where.
        off: Whether recording was off there.
        direct: Whether the operand was a parameter itself.
        callers: The points from which its function was called, the innermost first.
        number: Whether the numbers left torch.
        operands: How many tensors went into it.
    """

    name: str
    spot: Spot
    off: bool
    direct: bool
    callers: tuple[Spot, ...] = ()
    number: bool = False
    operands: int = 1


@dataclass
class _Parameter:
    tensor: ref[Tensor]
    version: int
    subject: Subject
    made: Spot | None
    passes: int = 0
    stepped: bool = False
    cuts: dict[Key, CutAt] = field(default_factory=dict)
    latest: dict[Key, int] = field(default_factory=dict)  # the latest pass at which each was met
    blamed: CutAt | None = None  # that of the pass for which an optimizer of its own stepped


@dataclass
class Lost:
    """Parameters that never got a gradient because of one cut.

    Attributes:
        cut: The cut.
        subjects: The parameters.
        made: Where an optimizer of theirs was made.
    """

    cut: CutAt
    subjects: list[Subject]
    made: Spot | None

    @property
    def names(self) -> str:
        """Some of their names."""
        known = [each.name for each in self.subjects]
        return ", ".join(known[:4]) + (", ..." if len(known) > 4 else "")


def is_cut(call: Call) -> bool:
    """Whether an operand had a graph, and the result, which depends on its numbers, has none."""
    if call.name in UNRELATED or not any(value.requires_grad for value in call.inputs):
        return False
    made = [*call.outputs, *(value for value, _, _ in call.writes)]
    numbers = [value for value in made if value.dtype.is_floating_point or value.dtype.is_complex]
    return bool(numbers) and not any(value.requires_grad for value in made)


def behind(tape: Tape, roots: list[Value]) -> list[Call]:
    """The calls that values were computed by, the latest first, not beyond a step of an optimizer."""
    found: list[Call] = []
    for call in tape.history(*roots):
        if call.name == "step" or len(found) >= MOST:
            break
        found.append(call)
    return found


def leaves_of(values: Iterator[Value] | list[Value], most: int = MOST) -> dict[int, Tensor]:
    """The leaves to which values have a graph, by id."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    waiting = [value for value in values if value.requires_grad]
    while waiting and len(seen) < most:
        value = waiting.pop()
        if value.number in seen:
            continue
        seen.add(value.number)
        if value.leaf and (tensor := value.tensor()) is not None:
            found[id(tensor)] = tensor
        if value.maker is not None and (not value.leaf or not value.maker.grad):  # a view under no_grad is a leaf too
            waiting += [each for each in value.maker.inputs if each.requires_grad and each.number < value.number]
    return found


def root_values(audit: Audit, backward: Backward) -> list[Value]:
    """What the tape knows of the roots of a pass."""
    known = [audit.tape.value_of(root) for root in backward.roots if isinstance(root, Tensor)]
    return [value for value in known if value is not None]


class LostParameters:
    """Remembers the parameters of optimizers that were cut from the root of every pass, and where.

    Args:
        cuts: Which calls count as cuts.
    """

    def __init__(self, cuts: Callable[[Audit, Call], bool]) -> None:
        self._cuts = cuts
        self._reached: dict[int, ref[Tensor]] = {}
        self._known: dict[int, _Parameter] = {}
        self._callers: dict[int, tuple[Spot, ...]] = {}
        self.passes = 0

    def hears(self, call: Call) -> None:
        """Note who called, of a call where nothing is recorded."""
        if not call.grad and len(self._callers) < CALLERS and any(value.requires_grad for value in call.inputs):
            self._callers[call.number] = callers()

    def passes_now(self, audit: Audit, backward: Backward) -> None:
        """A pass is about to run: which parameters are cut off from its root?"""
        self.passes += 1
        for leaf in backward.leaves:
            self._reaches(leaf)
        missing = {id(each): each for each in _trained(audit) if not self._is_reached(each)}
        if missing:
            self._look(audit, backward, missing)
        self._callers.clear()

    def steps_now(self, step: Step) -> None:
        """An optimizer is about to step: what has a gradient, or had one, is not lost."""
        for each in step.parameters:
            known = self._known.get(id(each))
            if each.grad is not None or step.optimizer.state.get(each):
                self._reaches(each)
            elif known is not None and known.tensor() is each:
                known.stepped = True
                if known.blamed is None:
                    known.blamed = next(
                        (known.cuts[key] for key, at in known.latest.items() if at == self.passes), None
                    )

    def at_end(self, audit: Audit) -> list[Lost]:
        """The cuts, each with the parameters that never got a gradient because of it."""
        found: dict[Key, Lost] = {}
        if audit.crashed:
            return []
        used = {id(each) for one in list(audit.optimizers) for each, state in one.state.items() if state}
        for key, known in self._known.items():
            if not known.stepped or not known.cuts or known.passes < min(2, self.passes) or key in self._reached:
                continue
            tensor = known.tensor()
            if tensor is not None and (
                tensor.grad is not None or key in used or tensor._version != known.version or not tensor.requires_grad
            ):
                continue
            cut = known.blamed or next(iter(known.cuts.values()))
            found.setdefault(key_of(cut.spot), Lost(cut, [], known.made)).subjects.append(known.subject)
        return list(found.values())

    def _reaches(self, tensor: Tensor) -> None:
        self._reached[id(tensor)] = ref(tensor)

    def _is_reached(self, tensor: Tensor) -> bool:
        known = self._reached.get(id(tensor))
        return known is not None and known() is tensor

    def _look(self, audit: Audit, backward: Backward, missing: dict[int, Tensor]) -> None:
        met: set[int] = set()
        for call in behind(audit.tape, root_values(audit, backward)):
            if call.spot is None or not self._cuts(audit, call):
                continue
            cut_off = leaves_of(list(call.inputs))
            mine = [key for key in missing if key in cut_off]
            if not mine:
                continue
            direct = any(value.leaf and id(value.tensor()) in mine for value in call.inputs if value.requires_grad)
            cut = CutAt(
                call.name,
                call.spot,
                not call.grad,
                direct,
                self._callers.get(call.number, ()),
                operands=len(call.inputs),
            )
            met.update(mine)
            for key in mine:
                self._met(self._note(audit, missing[key]), cut)
        for key in met:
            self._known[key].passes += 1

    def note(self, audit: Audit, tensor: Tensor, cut: CutAt) -> None:
        """A parameter was cut off, as is known from elsewhere."""
        known = self._note(audit, tensor)
        self._met(known, cut)
        known.passes += 1

    def _met(self, known: _Parameter, cut: CutAt) -> None:
        key = key_of(cut.spot)
        known.cuts.setdefault(key, cut)
        known.latest[key] = self.passes

    def missing(self, audit: Audit) -> dict[int, Tensor]:
        """The parameters of optimizers that no pass has reached so far, by id."""
        return {id(each): each for each in _trained(audit) if not self._is_reached(each)}

    def _note(self, audit: Audit, tensor: Tensor) -> _Parameter:
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            subject = audit.subject(tensor, "parameter")
            made = next((audit.made.get(one) for one in list(audit.optimizers) if _holds(one, tensor)), None)
            known = self._known[id(tensor)] = _Parameter(ref(tensor), tensor._version, subject, made)
            self._reached.pop(id(tensor), None)
        return known


def _trained(audit: Audit) -> Iterator[Tensor]:
    for one in list(audit.optimizers):
        for group in one.param_groups:
            yield from (each for each in group["params"] if each.requires_grad)


def _holds(optimizer: Optimizer, tensor: Tensor) -> bool:
    return any(each is tensor for group in optimizer.param_groups for each in group["params"])


def callers(most: int = 12) -> tuple[Spot, ...]:
    """The user's points that run now, the innermost first, without the innermost."""
    found: list[Spot] = []
    here: FrameType | None = sys._getframe(1)
    while here is not None and len(found) < most:
        spot = spot_of(here)
        if spot is None:
            break
        found.append(spot)
        while here is not None and here.f_code is not spot.code:
            here = here.f_back
        here = here.f_back if here is not None else None
    return tuple(found[1:])


def switched_off(cut: CutAt) -> tuple[Spot, ast.AST] | None:
    """The ``with`` or the decorator under which a call recorded nothing, and the point from which it is seen."""
    for spot in (cut.spot, *cut.callers):
        start: ast.AST | None = spot.node or spot.statement
        if start is None:
            continue
        for each in spot.source.around(start):
            if isinstance(each, ast.With | ast.AsyncWith):
                if any(OFF.search(spot.source.text(item.context_expr)) for item in each.items):
                    return spot, each
            elif isinstance(each, Function):
                for decorator in getattr(each, "decorator_list", ()):
                    if OFF.search(spot.source.text(decorator)):
                        return spot, decorator
                break
    return None


def marked_at(spot: Spot, node: ast.AST, what: str) -> Mark:
    """A line in the file of a point, with a part of it marked."""
    at = node.items[0].context_expr if isinstance(node, ast.With | ast.AsyncWith) else node
    place = Place(spot.file, getattr(at, "lineno", spot.line), spot.place.function)
    return Mark.at(place, what, spot.source.span(at) if isinstance(at, ast.expr | ast.Expr) else None)
