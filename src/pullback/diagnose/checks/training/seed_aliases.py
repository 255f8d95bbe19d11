"""PBA113: a gradient that shares its memory with the seed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


@dataclass
class _Shared:
    """A gradient and a seed that share memory."""

    leaf: ref[Tensor]
    grad: ref[Tensor]
    seed: ref[Tensor]
    version: int
    spot: Spot
    call: int


class SeedAliases(Fault):
    """A gradient is the seed itself, not a copy of it, and one of the two was written to.

    Where the graph only passes the seed on (views, additions), torch may put the very tensor that was given as the seed
    into ``x.grad``. Writing to ``x.grad`` in place (scaling, clipping, accumulating) then changes the seed, and writing
    to the seed changes ``x.grad``.

    Give a copy: ``y.backward(seed.clone())``. ``seed.detach()`` does not help, for it shares the memory.
    """

    code = "PBA113"
    title = "A gradient shares its memory with the seed, and one of them was changed in place."

    def __init__(self) -> None:
        self._shared: list[_Shared] = []
        self._given: dict[Key, ast.expr | None] = {}

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        self._look(audit)
        if backward.spot is None or not backward.record.accumulates:
            return
        known = key_of(backward.spot)
        if known not in self._given:  # the source is read once for each line
            self._given[known] = backward.spot.node
        node = self._given[known]
        if not isinstance(node, ast.Call) or (not node.args and not node.keywords) or not backward.record.accumulates:
            return
        seeds = [each for each in backward.seeds if isinstance(each, Tensor) and each.numel()]
        places = {where: each for each in seeds if (where := _memory(each))}
        for leaf in backward.leaves:
            grad = leaf.grad
            if grad is None or len(self._shared) > 100:
                continue
            seed = places.get(_memory(grad))
            if seed is not None and backward.spot is not None:
                number = audit.tape.calls[-1].number if audit.tape.calls else -1
                self._shared.append(_Shared(ref(leaf), ref(grad), ref(seed), seed._version, backward.spot, number))

    def before_step(self, audit: Audit, step: Step) -> None:
        self._look(audit)

    def at_end(self, audit: Audit) -> None:
        self._look(audit)

    def _look(self, audit: Audit) -> None:
        for each in list(self._shared):
            leaf, grad, seed = each.leaf(), each.grad(), each.seed()
            if leaf is None or grad is None or seed is None or leaf.grad is not grad:
                self._shared.remove(each)
            elif max(seed._version, grad._version) != each.version:
                self._shared.remove(each)
                self._say(audit, each, leaf, grad, seed)

    def _say(self, audit: Audit, each: _Shared, leaf: Tensor, grad: Tensor, seed: Tensor) -> None:
        writer = None
        for call in reversed(audit.tape.calls):
            if call.number <= each.call:
                break
            if call.spot is not None and any(
                value.tensor() is grad or value.tensor() is seed for value, _, _ in call.writes
            ):
                writer = call.spot
        name, what = audit.name_of(leaf, "x"), audit.name_of(seed, "seed")
        edits = self._edits(each.spot)
        marks = [each.spot.mark(say("here the seed becomes the gradient"))]
        if writer is not None:
            marks = [writer.mark(say("changes both")), *marks]
        audit.report(
            self.found(
                say(
                    "{name}.grad and {seed} are one piece of memory: the graph only passed the seed on. A write to one "
                    "changed the other.",
                    name=name,
                    seed=what,
                ),
                marks,
                Fix(
                    say("Give a copy of the seed."),
                    each.spot.source.code(*edits) or f"y.backward({what}.clone())",
                    edits,
                    "high" if edits else "medium",
                ),
                tensors=[audit.subject(seed, "seed", what)],
                useless=[say(".detach(): it shares the memory too")],
            )
        )

    @staticmethod
    def _edits(spot: Spot) -> tuple[Edit, ...]:
        node = spot.node
        if not isinstance(node, ast.Call):
            return ()
        given = next((one.value for one in node.keywords if one.arg in {"gradient", "grad_tensors"}), None)
        if given is None and isinstance(node.func, ast.Attribute) and node.args:
            given = node.args[0] if spot.source.text(node.func) != "torch.autograd.backward" else None
        if not isinstance(given, ast.Name | ast.Attribute | ast.Subscript):
            return ()
        return (spot.source.replaced(given, f"{spot.source.text(given)}.clone()"),)

    @staticmethod
    def bad():
        import torch

        w = torch.zeros(2, 3, requires_grad=True)
        weights = torch.ones(6)
        w.reshape(6).backward(gradient=weights)
        w.grad.div_(2)

    @staticmethod
    def good():
        import torch

        w = torch.zeros(2, 3, requires_grad=True)
        weights = torch.ones(6)
        w.reshape(6).backward(gradient=weights.clone())
        w.grad.div_(2)


def _memory(tensor: Tensor) -> int:
    """Where its memory begins; 0 where it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
