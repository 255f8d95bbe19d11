"""PBA304: a softmax over the batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import SAME, inside_functorch, origin
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say

NORMS = frozenset({"softmax", "log_softmax"})
LOSSES = frozenset({"nll_loss", "cross_entropy", "kl_div"})
# Samples may stand in columns, and be turned after the softmax.
TURNS = frozenset({"t", "T", "mT", "transpose", "permute", "swapaxes", "movedim"})
BETWEEN = (SAME - TURNS) | {"log", "add", "clamp", "clamp_min"}
MOST = 1000


class BatchSoftmax(Fault):
    """A softmax over dimension 0 of (N, C) normalises each class over the samples of the batch.

    The samples then compete with each other: the probability of one depends on which others happen to be in the batch,
    and the rows do not sum to 1. It runs and even learns something.

    The classes are dimension 1, or the last: ``torch.log_softmax(x, dim=1)``, ``nn.Softmax(dim=-1)``.
    """

    code = "PBA304"
    title = "A softmax before a classification loss was taken over the batch, not over the classes."
    hears = NORMS | LOSSES

    def __init__(self) -> None:
        self._over: OrderedDict[int, int] = OrderedDict()

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, Tensor) or given.dim() < 2 or inside_functorch():
            return
        if call.name in NORMS:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and min(given.shape[0], given.shape[dim]) > 1:
                self._over[call.number] = dim % given.dim()
                if len(self._over) > MOST:
                    self._over.popitem(last=False)
            return
        value = audit.tape.value_of(given)
        maker = origin(value, BETWEEN) if value is not None else None
        if maker is None or maker.number not in self._over or call.spot is None or maker.spot is None:
            return
        if given.dim() > 2 or (maker.outputs and len(maker.outputs[0].shape) != 2):
            self._sequence(audit, call, maker, given, result)
            return
        if self._over[maker.number] != 0 or given.shape[1] < 2:
            return
        if not result.requires_grad:
            return
        audit.report(
            self.found(
                say(
                    "{maker} over dimension 0 of a tensor of shape {shape} normalises over the {count} samples, not "
                    "over the {classes} classes; {loss} takes its rows for the probabilities of one sample.",
                    maker=maker.name, shape=tuple(given.shape), count=given.shape[0], classes=given.shape[1],
                    loss=call.name,
                ),
                [maker.spot.mark(say("normalised over the batch here")), call.spot.mark(say("used as a loss here"))],
                Fix(say("Normalise over the classes."), f"torch.{maker.name}(x, dim=1)"),
                tensors=[audit.subject(given, "input", "the input")],
            )
        )  # fmt: skip

    def _sequence(self, audit: Audit, call: Call, maker: Call, given: Tensor, result: Tensor) -> None:
        """More dimensions than two: the classes are the last one if it is flattened, else dimension 1."""
        assert call.spot is not None
        assert maker.spot is not None
        shape = maker.outputs[0].shape if maker.outputs else ()
        dim, flat = self._over[maker.number], given.dim() == 2
        right = len(shape) - 1 if flat else 1
        same = shape[-1:] == tuple(given.shape[1:]) if flat else shape == tuple(given.shape)
        if call.name == "kl_div" or dim == right or not same or len(shape) < 3 or not result.requires_grad:
            return
        audit.report(
            self.found(
                say(
                    "{maker} over dimension {dim} of a tensor of shape {shape} does not normalise over the classes: "
                    "{loss} has them in dimension {right}.",
                    maker=maker.name, dim=dim, shape=shape, loss=call.name, right=right,
                ),
                [maker.spot.mark(say("normalised over another dimension here")),
                 call.spot.mark(say("used as a loss here"))],
                Fix(say("Normalise over the classes."), f"torch.{maker.name}(x, dim={-1 if flat else 1})"),
                tensors=[audit.subject(given, "input", "the input")],
                title=say("A softmax before a classification loss was not taken over the classes."),
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LogSoftmax(dim=0))
        torch.nn.functional.nll_loss(net(torch.randn(7, 5)), torch.tensor([0, 2, 1, 1, 0, 0, 2])).backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LogSoftmax(dim=-1))
        torch.nn.functional.nll_loss(net(torch.randn(7, 5)), torch.tensor([0, 2, 1, 1, 0, 0, 2])).backward()
