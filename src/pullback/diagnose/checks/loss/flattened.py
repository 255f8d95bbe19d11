"""PBA309: the prediction and the target flattened in different orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch, operand
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

CLASSES = frozenset({"cross_entropy", "nll_loss"})
ELEMENTS = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
})  # fmt: skip
FLATTENS = frozenset({"view", "reshape", "flatten", "ravel"})
KEEPS = frozenset({"float", "double", "long", "to", "contiguous", "clone", "detach", "log_softmax", "sigmoid"})


class FlattenedApart(Fault):
    """The prediction and the target were flattened while their dimensions stood in different orders.

    ``reshape(-1)`` of (batch, time) goes through the samples one after the other, of (time, batch) through the times.
    Both have the same number of elements, so the loss runs; but the prediction of one position is compared with the
    target of another, and the net can learn no more than the mean. Recurrent nets without ``batch_first`` and
    ``pad_sequence`` put the time first.

    Bring both to one order first, ``target.transpose(0, 1)``, and flatten then.
    """

    code = "PBA309"
    title = "The prediction and the target were flattened in different orders: positions that do not belong together."
    hears = CLASSES | ELEMENTS

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or inside_functorch() or not getattr(result, "requires_grad", False):
            return
        given = args[0] if args else kwargs.get("input")
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if not isinstance(given, Tensor) or not isinstance(target, Tensor) or target.dim() != 1:
            return
        values = audit.tape.value_of(given), audit.tape.value_of(target)
        flats = [_flattened(each) if each is not None else None for each in values]
        one, other = flats
        if one is None or other is None or one.spot is None or other.spot is None:
            return
        shape, wanted = one.inputs[0].shape, other.inputs[0].shape
        if given.dim() == 2 and call.name in CLASSES and shape[-1] == given.shape[1]:
            shape = shape[:-1]
        elif given.dim() != 1 or call.name in CLASSES:
            return
        if _swapped(shape, wanted):
            audit.report(self._finding(audit, call, (one, other), (shape, wanted), (given, target)))

    def _finding(
        self, audit: Audit, call: Call, flats: tuple[Call, Call], shapes: tuple[Any, Any], given: tuple[Tensor, Tensor]
    ) -> Diagnosis:
        assert call.spot is not None
        marks = [call.spot.mark(say("positions that do not belong together are compared here"))]
        texts = (say("the prediction is flattened here"), say("the target is flattened here"))
        for flat, text in zip(flats, texts, strict=True):
            assert flat.spot is not None
            marks.append(flat.spot.mark(text))
        return self.found(
            say(
                "The positions of the prediction had shape {shape} before it was flattened, those of the target "
                "{wanted}. The same number of elements, in another order: each prediction is compared with the target "
                "of another position.",
                shape=shapes[0], wanted=shapes[1],
            ),
            marks,
            Fix(say("Bring both to one order before they are flattened."), _turned(flats[1], shapes[1])),
            tensors=[audit.subject(each, role, role) for each, role in zip(given, ("input", "target"), strict=True)],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.GRU(3, 4)
        x, labels = torch.randn(5, 2, 3), torch.randint(0, 4, (2, 5))
        scores, _ = net(x)
        torch.nn.functional.cross_entropy(scores.reshape(-1, 4), labels.reshape(-1)).backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.GRU(3, 4)
        x, labels = torch.randn(5, 2, 3), torch.randint(0, 4, (2, 5))
        scores, _ = net(x)
        torch.nn.functional.cross_entropy(scores.reshape(-1, 4), labels.t().reshape(-1)).backward()


def _flattened(value: Value) -> Call | None:
    """The call that flattened a value."""
    call = value.maker
    for _ in range(4):
        if call is None or not call.inputs or not call.outputs:
            return None
        if call.name in FLATTENS:
            return call
        if call.name not in KEEPS:
            return None
        call = call.inputs[0].maker
    return None


def _turned(flat: Call, shape: tuple[int, ...]) -> str:
    """The target, turned before it is flattened."""
    name = "target"
    if flat.spot is not None:
        given = operand(flat.spot, flat.spot.node)
        name = flat.spot.source.text(given) if given is not None and given.lineno == given.end_lineno else name
    turn = "transpose(0, 1)" if len(shape) == 2 else "permute(...)"
    return f"{name}.{turn}.reshape(-1)"


def _swapped(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether two shapes are the same lengths in another order."""
    one, other = [size for size in shape if size != 1], [size for size in wanted if size != 1]
    return one != other and len(one) > 1 and sorted(one) == sorted(other)
