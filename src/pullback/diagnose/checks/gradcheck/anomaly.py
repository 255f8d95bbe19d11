"""PB851: anomaly mode found NaN in a backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.evidence.transforms import defined, wrapped_text
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

# The names by which an operation is called, where they are not the node's own in lower case.
NAMES = {
    "linalgvectornorm": ("norm", "vector_norm"), "linalgmatrixnorm": ("norm", "matrix_norm"),
    "norm": ("norm",), "std": ("std", "std_mean"), "var": ("var",), "acos": ("acos", "arccos"),
    "asin": ("asin", "arcsin"), "div": ("div", "true_divide"), "mul": ("mul",), "euclideandist": ("cdist",),
    "cdist": ("cdist",), "logsoftmax": ("log_softmax", "cross_entropy"), "softmax": ("softmax",),
    "linalgeigh": ("eigh",), "linalgsvd": ("svd",), "maskedfill": ("masked_fill", "masked_fill_"),
}  # fmt: skip
OPERATORS: dict[str, type[ast.operator]] = {"div": ast.Div, "mul": ast.Mult, "pow": ast.Pow}
NODES = 20_000


class Anomaly(Cause):
    """Anomaly mode found a NaN that a backward made: a derivative that is infinite or undefined met a zero.

    The derivative of ``sqrt`` at 0 is infinite, and so is that of ``log``; ``0 * inf`` is NaN. It happens at ``sqrt``,
    ``norm`` and ``std`` of zeros, ``log`` of 0, ``x ** p`` at 0 with ``p < 1``, ``acos`` and ``asin`` at ±1, division
    by 0, and behind ``torch.where``: the side that is not chosen gets the gradient 0, times infinity.

    Keep the argument away from the point: ``torch.sqrt(x + 1e-12)``, ``torch.log(x.clamp_min(1e-12))``. Behind
    ``torch.where`` make the *argument* harmless first: ``safe = torch.where(ok, x, 1.0)``. Replacing NaN afterwards
    (``nan_to_num`` of the loss, ``clip_grad_norm_``) does not help: the gradient is NaN already.
    """

    code = "PB851"
    title = "A backward gave NaN: its operation has an infinite or undefined derivative at this point."
    says = ("returned nan values in its",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = re.search(r"Function '(\w+?)(?:Backward\w*)?' returned nan values", case.message)
        if found is None:
            return None
        node = _origin(case, found.group(0).split("'")[1])
        operation = _short(node)
        traced = _traced(case, node)
        places = list(_written(case, operation))
        if traced:
            places = [
                each for each in places if (each.source.file, each.node.lineno) in {(p.file, p.line) for p in traced}
            ]
        marks = [case.mark(say("the backward pass starts here"))]
        marks += [each.mark(case) for each in places] or [
            Mark.at(place, say("{name} runs here", name=operation)) for place in traced
        ]
        sure = len(places) == 1 or len(traced) == 1
        edits = _mended(places[0], operation) if len(places) == 1 else ()
        return self.found(
            say("{name}: {reason}", name=node, reason=_reason(operation)),
            marks,
            Fix(_advice(operation), "\n".join(each.text.strip() for each in edits if each.text), edits,
                "high" if edits and sure else "medium"),
            confidence="high" if sure else "medium",
            useless=[say("nan_to_num or gradient clipping afterwards: the gradient is NaN by then.")],
            apart="" if sure else say("Which of these lines made the node."),
            wants="" if sure else say("Which line made the node that gave NaN?"),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        distance = torch.zeros(4, requires_grad=True)
        with torch.autograd.detect_anomaly():
            angle = (distance.sqrt() * 0).mean()
            angle.backward()

    @staticmethod
    def good():
        import torch

        distance = torch.full((4,), 0.5, requires_grad=True)
        with torch.autograd.set_detect_anomaly(False):
            angle = (distance + 1e-12).sqrt().mean()
            angle.backward()


@dataclass(frozen=True)
class Operation:
    """One place in the source where an operation is called."""

    source: Source
    node: ast.expr
    operand: ast.expr | None
    frame: Frame | None

    def mark(self, case: Case) -> Mark:
        """Its line, with how many elements of its operand are zero, if that is known."""
        value = self.frame.evaluated(self.operand) if self.frame is not None else None
        what = say("this operation")
        if isinstance(value, Tensor) and not value.is_sparse:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                zeros = int((value == 0).sum())
            what = say("{name}: {zeros} of {all} elements are 0", name=self.source.text(self.operand or self.node),
                       zeros=zeros, all=value.numel())  # fmt: skip
        function = next(
            (each.name for each in self.source.around(self.node) if isinstance(each, ast.FunctionDef)), "<module>"
        )
        return Mark.at(Place(self.source.file, self.node.lineno, function), what, self.source.span(self.node))


# Operations whose derivative is infinite somewhere.
SINGULAR = frozenset({
    "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "acos", "asin", "acosh", "atanh", "std", "div", "reciprocal",
    "pow", "logit", "erfinv", "xlogy", "lgamma", "tan", "linalgvectornorm", "norm", "linalgeigh", "linalgsvd", "exp",
})  # fmt: skip


def _short(name: str) -> str:
    """The operation of a node: ``sqrt`` of ``SqrtBackward0``."""
    return re.sub(r"Backward\d*$", "", name).lower()


def _nodes(case: Case) -> dict[Any, list[Any]]:
    """The nodes behind the roots, each with those that it gets its gradient from."""
    roots = [root.grad_fn for root in case.asked.tensors] if case.asked is not None else []
    found: dict[Any, list[Any]] = {node: [] for node in roots if node is not None}
    stack = list(found)
    while stack and len(found) < NODES:
        node = stack.pop()
        for child, _ in node.next_functions:
            if child is None:
                continue
            if child not in found:
                found[child] = []
                stack.append(child)
            found[child].append(node)
    return found


def _origin(case: Case, name: str) -> str:
    """The node that made the infinity: that which gave NaN or, if it has no singularity, the last one that has."""
    nodes = _nodes(case)
    front = [node for node in nodes if node.name() == name]
    if not front or any(_singular(node) for node in front):
        return name
    seen = set(front)
    while front:
        front = [before for node in front for before in nodes[node] if before not in seen]
        seen |= set(front)
        for node in front:
            if _singular(node):
                return str(node.name())
    return name


def _singular(node: Any) -> bool:
    if _short(node.name()) == "pow":
        exponent = getattr(node, "_saved_exponent", None)
        return not isinstance(exponent, int | float) or exponent < 1
    return _short(node.name()) in SINGULAR


def _traced(case: Case, name: str) -> list[Place]:
    """The lines that made the nodes of this name behind the roots, if they were recorded."""
    places = [case.line_of(node) for node in _nodes(case) if node.name() == name]
    return list(dict.fromkeys(place for place in places if place is not None))


def _written(case: Case, operation: str) -> Iterator[Operation]:
    """The places where the user's source calls an operation: in the functions that failed, else in their files."""
    names = NAMES.get(operation, (operation,))
    kind = OPERATORS.get(operation)
    scopes: list[tuple[Source, ast.AST, Frame | None]] = [
        (each.source, each.scope, each) for each in reversed(case.frames)
    ]
    found = [place for source, scope, frame in scopes for place in _calls(source, scope, frame, names, kind)]
    if not found:
        files = {each.file for each in case.frames}
        files |= {where.source.file for _, module in case.holds(nn.Module) for part in module.modules()
                  if (where := defined(type(part).forward)) is not None}  # fmt: skip
        found = [
            place
            for file in sorted(files)
            for place in _calls(source_of(file), source_of(file).tree, None, names, kind)
        ]
    yield from {(each.source.file, each.node.lineno, each.node.col_offset): each for each in found}.values()


def _calls(
    source: Source, scope: ast.AST, frame: Frame | None, names: tuple[str, ...], kind: type[ast.operator] | None
) -> Iterator[Operation]:
    for node in ast.walk(scope):
        if isinstance(node, ast.BinOp) and kind is not None and isinstance(node.op, kind):
            yield Operation(source, node, node.right if kind is ast.Div else node.left, frame)
        elif isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if last.rstrip("_") in names and last.rstrip("_"):
                yield Operation(source, node, _operand(node), frame)


def _operand(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.sqrt()`` and of ``torch.sqrt(x)``."""
    if isinstance(call.func, ast.Attribute) and not _library(call.func.value):
        return call.func.value
    return call.args[0] if call.args else None


def _library(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in {"torch", "F", "math", "linalg"}


def _reason(operation: str) -> str:
    reasons = {
        "sqrt": say("the derivative of sqrt is infinite at 0, and undefined below; times a zero it is NaN."),
        "rsqrt": say("1/sqrt and its derivative are infinite at 0; times a zero they are NaN."),
        "log": say("the derivative of log is infinite at 0, and log is undefined below; times a zero it is NaN."),
        "pow": say(
            "a power below 1 (or a negative base with a fractional exponent) has no finite derivative at this point."
        ),
        "acos": say("the derivative of acos is infinite at ±1, and acos is undefined beyond."),
        "asin": say("the derivative of asin is infinite at ±1, and asin is undefined beyond."),
        "div": say("the divisor is 0, or infinity was divided by infinity."),
        "std": say("the derivative of a standard deviation is infinite where all values are equal."),
        "mul": say("infinity was multiplied by 0."),
    }
    norm = say("the derivative of a norm is undefined where the vector is 0.")
    return reasons.get(operation, norm if "norm" in operation or "dist" in operation else say(
        "an infinite or undefined derivative met a zero, or a NaN came from the forward pass."
    ))  # fmt: skip


def _advice(operation: str) -> str:
    if operation in {"acos", "asin"}:
        return say("Keep the argument within ±(1 - 1e-7): clamp it first.")
    if operation == "log":
        return say("Keep the argument above 0: clamp_min(1e-12).")
    if operation in {"div", "rsqrt"}:
        return say("Keep the divisor away from 0: add a small number, or choose a safe divisor with torch.where first.")
    return say("Keep the argument away from this point: add a small number before the operation.")


def _mended(place: Operation, operation: str) -> tuple[Edit, ...]:
    """The argument kept away from the point, for operations of one argument."""
    changes: dict[str, Callable[[str, str], str]] = {
        "sqrt": lambda text, _: f"{text} + 1e-12",
        "rsqrt": lambda text, _: f"{text} + 1e-12",
        "log": lambda _, inner: f"{inner}.clamp_min(1e-12)",
        "acos": lambda _, inner: f"{inner}.clamp(-1 + 1e-7, 1 - 1e-7)",
        "asin": lambda _, inner: f"{inner}.clamp(-1 + 1e-7, 1 - 1e-7)",
    }
    call, operand = place.node, place.operand
    if operation not in changes or operand is None or not isinstance(call, ast.Call):
        return ()
    text = place.source.text(operand)
    changed = changes[operation](text, wrapped_text(text, operand))
    if isinstance(call.func, ast.Attribute) and call.func.value is operand and "+" in changed.removeprefix(text):
        changed = f"({changed})"
    return (place.source.replaced(operand, changed),)
