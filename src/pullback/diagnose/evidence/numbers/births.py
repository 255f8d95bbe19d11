"""Where a backward pass first turns finite cotangents into ones that are not, seen by hooks on its nodes.

The hooks are there for one pass, compare sums, and keep no tensor. Once something was found, no more are set.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.evidence.numbers.seed import scales_loss
from pullback.diagnose.evidence.numbers.zero import ACCUMULATE, parents_of
from pullback.graph.saved import kept_by

# The hooks take no more than this share of the program's time, once the first half second of them is used up.
SHARE = 0.1
HALF = (torch.float16, torch.bfloat16)


@dataclass
class Birth:
    """Where numbers first ceased to be finite, and how: live only while the faults are told of the pass.

    Attributes:
        node: The node.
        kind: ``derivative``, ``where``, ``mask``, ``division``, ``single``, ``overflow``, ``empty``, ``given`` or
            ``other``.
        forward: Whether the value itself is not finite, not only the derivative.
        leaves: The leaves whose gradient is not finite.
        selector: The node of the ``where`` or of the product that hides the place in the forward.
        branch: Which input of the selector it is.
    """

    node: Node
    kind: str
    forward: bool
    leaves: list[Tensor]
    selector: Node | None = None
    branch: int = 0


@dataclass
class Underflow:
    """A cast at which cotangents became zero.

    Attributes:
        node: The node of the cast.
        largest: The largest cotangent that came in.
        dtype: The dtype it was cast to.
        count: The elements.
    """

    node: Node
    largest: float
    dtype: torch.dtype
    count: int


@dataclass
class Watch:
    """What is seen in one program, for all faults that ask.

    Attributes:
        birth: Where numbers of the pass that has just ended ceased to be finite.
        underflows: The casts at which its cotangents became zero.
        dead: The nodes, by place, that a cotangent came into and only zeros came out of.
        shared: The edges, as node and input, that one tensor went along together with another edge.
    """

    number: int = -1
    done: bool = False
    spent: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    handles: list[Any] = field(default_factory=list)
    born: list[tuple[int, bool, bool]] = field(default_factory=list)
    arrived: list[tuple[int, int]] = field(default_factory=list)
    casts: list[tuple[int, float, torch.dtype, int]] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    shared: set[tuple[int, int]] = field(default_factory=set)
    earlier: tuple[int, str] | None = None
    birth: Birth | None = None
    underflows: list[Underflow] = field(default_factory=list)
    told: int = -1

    def begin(self, audit: Audit, backward: Backward) -> None:
        """Set the hooks of a pass, if there is time for it."""
        if self.number == backward.record.number:
            return
        self.number = backward.record.number
        self.release()
        self.born, self.arrived, self.casts, self.dead = [], [], [], []
        self.shared = set()
        if inside_functorch() or not self._affordable(audit):
            return
        begin = time.perf_counter()
        self.earlier = None if self.done else _forward_birth(backward)
        for index, node in enumerate(backward.nodes):
            if node.name() != ACCUMULATE and not node.name().startswith("torch::autograd::Graph"):
                ends = tuple(
                    place
                    for place, (child, _) in enumerate(node.next_functions)
                    if child is not None and child.name() == ACCUMULATE
                )
                name = "" if hasattr(node, "_forward_cls") else node.name()
                hook = partial(self._passed, index, name, ends)
                self.handles.append(node.register_hook(hook))
        self.spent += time.perf_counter() - begin

    def finish(self, audit: Audit, backward: Backward) -> None:
        """Take the hooks off, and make out what they saw."""
        if self.told == backward.record.number:
            return
        self.told = backward.record.number
        self.release()
        self.birth, self.underflows = None, []
        if self.number != backward.record.number:
            return
        nodes = backward.nodes
        self.underflows = [Underflow(nodes[index], *rest) for index, *rest in self.casts]  # type: ignore[arg-type]
        if not self.done and self.born:
            leaves = [nodes[index].next_functions[place][0].variable for index, place in self.arrived]  # type: ignore[union-attr]
            if leaves or backward.inputs:
                self.birth = self._birth(backward, leaves)
                self.earlier = None
                if self.birth.kind in ("overflow", "other") and scales_loss(audit):
                    self.birth = None
                self.done = self.birth is not None

    def release(self) -> None:
        """Take the hooks off."""
        while self.handles:
            self.handles.pop().remove()

    def forget(self) -> None:
        """Let go of the nodes of a pass."""
        self.birth, self.underflows = None, []

    def _affordable(self, audit: Audit) -> bool:
        elapsed = time.perf_counter() - self.began
        return self.spent < 0.5 or (audit.affordable and self.spent < SHARE * elapsed)

    def _passed(self, index: int, name: str, ends: Sequence[int], into: Sequence[Any], came: Sequence[Any]) -> None:
        begin = time.perf_counter()
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._look(index, name, ends, into, came)
        except Exception:  # a gradient of a kind that cannot be summed: the program must go on
            return
        finally:
            self.spent += time.perf_counter() - begin

    def _look(self, index: int, name: str, ends: Sequence[int], into: Sequence[Any], came: Sequence[Any]) -> None:
        if len(into) == 2 and all(isinstance(each, Tensor) and each.numel() for each in into):
            self.shared |= {(index, 0), (index, 1)} if into[0].data_ptr() == into[1].data_ptr() else set()
        wrong = [place for place, each in enumerate(into) if not finite(each)]
        if wrong:
            self.arrived += [(index, place) for place in wrong if place in ends]
            if not self.born and all(map(finite, came)):
                self.born.append((index, _from_zero(into, came), _beyond_half([into[place] for place in wrong])))
        elif name.startswith("ToCopyBackward") and into and came and into[0] is not None and came[0] is not None:
            if into[0].dtype in HALF and into[0].dtype != came[0].dtype and not bool(into[0].any()):
                largest = float(came[0].abs().max())
                if largest > 0:
                    self.casts.append((index, largest, into[0].dtype, came[0].numel()))
        elif (
            name.startswith(("ReluBackward", "ClampBackward", "ClampM", "HardtanhBackward", "ThresholdBackward"))
            and into
            and came
            and into[0] is not None
            and not bool(into[0].any())
            and bool(came[0].any())
        ):
            self.dead.append(index)

    def _birth(self, backward: Backward, leaves: list[Tensor]) -> Birth:
        index, from_zero, beyond = self.born[0]
        node = backward.nodes[index]
        earlier, forward = self.earlier, self.earlier is not None
        if earlier is not None and backward.nodes[earlier[0]] is not node:
            return Birth(backward.nodes[earlier[0]], earlier[1], forward=True, leaves=leaves)
        if from_zero and (selected := _selector(backward, node)) is not None:
            above, branch, kind = selected
            return Birth(node, kind, forward, leaves, above, branch)
        kind = "given" if earlier is not None and earlier[1] == "given" else _kind(node)
        return Birth(node, "overflow" if beyond and kind == "other" else kind, forward, leaves)


_watches: WeakKeyDictionary[Audit, Watch] = WeakKeyDictionary()


def watch(audit: Audit) -> Watch:
    """What watches the passes of an audited program."""
    return _watches.setdefault(audit, Watch())


def finite(tensor: Any) -> bool:
    """Whether all of a tensor is finite; what is no tensor is."""
    if not isinstance(tensor, Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    total = complex(tensor.sum().item())
    if math.isfinite(total.real) and math.isfinite(total.imag):
        return True
    return bool(torch.isfinite(tensor).all().item())


def _from_zero(into: Sequence[Any], came: Sequence[Any]) -> bool:
    """Whether what is not finite comes from cotangents that are zero."""
    for each in into:
        if isinstance(each, Tensor) and len(came) == 1 and isinstance(came[0], Tensor) and each.shape == came[0].shape:
            bad = ~torch.isfinite(each)
            if bool(bad.any()):
                return not bool(came[0][bad].any())
    return False


def _beyond_half(wrong: Sequence[Any]) -> bool:
    """Whether these are infinite in float16, whose range ends at 65504."""
    return all(
        isinstance(each, Tensor) and each.dtype == torch.float16 and not bool(torch.isnan(each).any()) for each in wrong
    )


def _selector(backward: Backward, node: Node) -> tuple[Node, int, str] | None:
    """The ``where`` or the product by which a node's result was hidden: the nearest towards the root."""
    parents: dict[Node, list[Node]] = parents_of(backward)
    here = node
    for _ in range(10):
        above = parents.get(here, [])
        if len(above) != 1:
            return None
        name = above[0].name()
        branch = next(place for place, (child, _) in enumerate(above[0].next_functions) if child is here)
        if hasattr(above[0], "_forward_cls"):
            return None
        if name.startswith(("WhereBackward", "MaskedFillBackward")):
            return above[0], branch, "where"
        if name.startswith("MulBackward"):
            return above[0], branch, "mask"
        here = above[0]
    return None


_DERIVATIVES = (
    "Sqrt", "Rsqrt", "Pow", "Log", "Acos", "Asin", "Acosh", "Asinh", "Atanh", "Norm", "LinalgVectorNorm", "Cdist",
    "Logit", "Xlogy", "LinalgEigh", "LinalgSvd", "LinalgEig", "Lgamma", "Erfinv", "Tan", "PairwiseDistance",
)  # fmt: skip
_SOFTMAX = ("Softmax", "LogSoftmax")
_OVERFLOWS = ("Exp", "Expm1", "Sinh", "Cosh", "ToCopy", "Exp2")


def _kind(node: Node) -> str:
    name = "" if hasattr(node, "_forward_cls") else node.name().partition("Backward")[0]
    if name in {"Std", "Var", "StdMean", "VarMean"}:
        return "single"
    if name in {"Div", "Reciprocal"}:
        return "division"
    if name.startswith(_OVERFLOWS):
        return "overflow"
    if name.startswith(_SOFTMAX) and node.next_functions:
        child = node.next_functions[0][0]
        if child is not None and child.name().startswith(("MaskedFill", "Where", "Add")):
            return "empty"
    return "derivative" if name.startswith(_DERIVATIVES) else "other"


def _forward_birth(backward: Backward) -> tuple[int, str] | None:
    """The first operation whose value is not finite (its place among the nodes, the kind), if the output is not finite.

    The tensors that the nodes saved tell, so it must be asked before the pass frees them.
    """
    if all(finite(root) for root in backward.roots):
        return None
    places = {node: place for place, node in enumerate(backward.nodes)}
    nodes = [node for node in places if 0 <= node._sequence_nr() < 2**63 and node.name() != ACCUMULATE]
    for node in sorted(nodes, key=lambda node: node._sequence_nr()):
        for name, tensor in kept_by(node).tensors:
            if not finite(tensor):
                made, kind = (node, _kind(node)) if name.startswith("result") else _producer(node, name)
                return places[made], kind
    return None


_PLACES: dict[str, int] = {"self": 0, "input": 0, "other": 1, "exponent": 1, "weight": 1, "mat2": 2, "mat1": 1}


def _producer(node: Node, name: str) -> tuple[Node, str]:
    children = [child for child, _ in node.next_functions]
    place = 0 if len(children) == 1 else _PLACES.get(name, -1)
    child = children[place] if 0 <= place < len(children) else None
    if place >= 0 and (child is None or child.name() == ACCUMULATE):
        return node, "given"
    return (node, "other") if child is None else (child, _kind(child))
