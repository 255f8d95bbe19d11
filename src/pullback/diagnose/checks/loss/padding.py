"""PBA308: padding that a classification loss takes for labels."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.find import SAME, inside_functorch
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

LOSSES = frozenset({"cross_entropy", "nll_loss"})
MASKS = frozenset({"__eq__", "__ne__", "eq", "ne"})
# So many positions of padding, so many rows, and so many looks at each line.
PADS, ROWS, LOOKS = 4, 2, 8
# So many embeddings are remembered.
MOST = 8


class PaddingInLoss(Fault):
    """Sequences of different lengths were padded to one, and the loss takes the padding for labels.

    Each padded position adds a term that asks the net to predict the padding. These terms are easy, so the loss looks
    small; in a batch of short sequences they are most of it, and the mean over the real positions is diluted.

    Name the padding: ``CrossEntropyLoss(ignore_index=pad)``, and the mean is over the real positions only; or pad the
    labels with -100, which is ignored by default. ``padding_idx`` of an embedding does not do it: it only keeps the
    vector of the padding from learning.
    """

    code = "PBA308"
    title = "Padding takes part in the loss: it is predicted like a label."
    hears = LOSSES | MASKS | {"embedding"}

    def __init__(self) -> None:
        self._padded: dict[int, tuple[ref[Tensor], int, Spot | None]] = {}
        self._masked: dict[int, Spot] = {}
        self._looks: dict[Any, int] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or inside_functorch():
            return
        if call.name == "embedding":
            self._embedded(call, args, kwargs)
        elif call.name in MASKS:
            # a mask of padding: what the number is called
            table = len(args) == 2 and isinstance(args[0], Tensor) and args[0].dim() == 2
            if table and type(args[1]) is int and len(self._masked) < MOST:
                self._masked.setdefault(args[1], call.spot)
        elif isinstance(result, Tensor) and result.requires_grad:
            target = kwargs.get("target", args[1] if len(args) > 1 else None)
            key = (call.spot.code, call.spot.place[:2])
            self._looks[key] = self._looks.get(key, 0) + 1
            if isinstance(target, Tensor) and not target.is_floating_point() and self._looks[key] <= LOOKS:
                self._loss(audit, call, target, args, kwargs)

    def _embedded(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tokens = args[0] if args else kwargs.get("input")
        pad = kwargs.get("padding_idx", args[2] if len(args) > 2 else None)
        if isinstance(tokens, Tensor) and tokens.dim() == 2 and isinstance(pad, int) and pad >= 0:
            self._padded.pop(id(tokens), None)
            self._padded[id(tokens)] = (ref(tokens), pad, call.spot)
            if len(self._padded) > MOST:
                del self._padded[next(iter(self._padded))]

    def _loss(self, audit: Audit, call: Call, target: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if kwargs.get("reduction", "mean") == "none":
            return
        value = audit.tape.value_of(target)
        shape = _rows(value) if value is not None else None
        if value is None or shape is None or shape[0] * shape[1] != target.numel():
            return
        labels = target.detach().reshape(shape)
        found = self._inputs(labels) or self._ends(value, labels)
        if found is None:
            return
        pad, count, spot = found
        weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
        ignored = kwargs.get("ignore_index", -100)
        if pad == ignored or (isinstance(weight, Tensor) and pad < weight.numel() and float(weight[pad]) == 0):
            return
        finding = self._finding(audit, call, target, pad, count, spot)
        # one at the end of each row may be padding too
        if int((labels == pad).sum()) - count > len(labels):
            finding = self._also_label(finding, _padder(value), pad)
        audit.report(finding)

    def _inputs(self, labels: Tensor) -> tuple[int, int, Spot | None] | None:
        """The label that stands wherever the input is padding, how often, and where the padding is known from."""
        for there, pad, spot in reversed(list(self._padded.values())):
            tokens = there()
            if tokens is None or tokens.shape != labels.shape or tokens.device != labels.device:
                continue
            at = labels[tokens == pad]
            rest = labels[tokens != pad]
            if at.numel() < PADS or not bool((at == at[0]).all()) or not bool((rest != at[0]).any()):
                continue
            # a label that real positions have as well may be meant there
            if int(at[0]) == pad or not bool((rest == at[0]).any()):
                return int(at[0]), at.numel(), spot
        return None

    def _ends(self, value: Value, labels: Tensor) -> tuple[int, int, Spot | None] | None:
        """The label that only ever fills the ends of rows, of several lengths; batch first or time first."""
        padder = _padder(value)
        for table in (labels, labels.t()):
            last = table[:, -1]
            for pad in dict.fromkeys((0, *self._masked, int(last[0]), int(last.max()))):
                at = table == pad
                lengths = at.sum(1)
                ends = at.flip(1).long().cumprod(1).sum(1)
                if not bool((lengths == ends).all()) or int((lengths > 0).sum()) < ROWS:
                    continue
                count = int(lengths.sum())
                several = len(torch.unique(lengths)) > 2 and count >= 2 * PADS and len(table) >= PADS
                if padder is None and not (several and pad in (0, int(labels.max()), *self._masked)):
                    continue
                if int(lengths.max()) < table.shape[1] and count >= PADS:
                    return pad, count, padder.spot if padder is not None else self._masked.get(pad)
        return None

    def _finding(self, audit: Audit, call: Call, target: Tensor, pad: int, count: int, spot: Spot | None) -> Diagnosis:
        assert call.spot is not None
        marks = [call.spot.mark(say("the padding is taken for labels here"))]
        if spot is not None:
            marks.append(spot.mark(say("{pad} is the padding here", pad=pad)))
        code, edits = _ignoring(call.spot, pad)
        return self.found(
            say(
                "{count} of the {all} labels are {pad} where the sequences have ended: padding. Each adds a term to "
                "the loss, as ignore_index does not name it.",
                count=count, all=target.numel(), pad=pad,
            ),
            marks,
            Fix(say("Name the padding."), code, edits, "high" if spot is not None else "medium"),
            tensors=[audit.subject(target, "target", "the target")],
            confidence="high" if spot is not None else "medium",
            apart="" if spot is not None else say("If {pad} is a label that is to be predicted there, all is well.",
                                                  pad=pad),
        )  # fmt: skip

    @staticmethod
    def _also_label(finding: Diagnosis, padder: Call | None, pad: int) -> Diagnosis:
        """The same, where ignoring the label would ignore real positions."""
        code = "labels = pad_sequence(labels, batch_first=True, padding_value=-100)"
        edits: tuple[Edit, ...] = ()
        marks = finding.marks
        if padder is not None and padder.spot is not None:
            marks = (padder.spot.mark(say("the labels are padded here")), *marks)
            node, source = padder.spot.node, padder.spot.source
            named = [each.arg for each in node.keywords] if isinstance(node, ast.Call) else [None]
            if node is not None and node.lineno == node.end_lineno and not {None, "padding_value"} & set(named):
                code = f"{source.text(node)[:-1]}, padding_value=-100)"
                edits = (source.replaced(node, code),)
        text = say("Pad the labels with -100, which is ignored: {pad} is also a label.", pad=pad)
        return replace(finding, marks=marks, fix=Fix(text, code, edits, "high" if edits else "medium"))

    @staticmethod
    def bad():
        import torch

        torch.manual_seed(0)
        embed, out = torch.nn.Embedding(9, 4, padding_idx=0), torch.nn.Linear(4, 9)
        tokens = torch.tensor([[3, 5, 2, 0, 0, 0], [4, 2, 0, 0, 0, 0], [6, 7, 8, 3, 5, 2]])
        logits = out(embed(tokens[:, :-1]))
        torch.nn.functional.cross_entropy(logits.reshape(-1, 9), tokens[:, 1:].reshape(-1)).backward()

    @staticmethod
    def good():
        import torch

        torch.manual_seed(0)
        embed, out = torch.nn.Embedding(9, 4, padding_idx=0), torch.nn.Linear(4, 9)
        tokens = torch.tensor([[3, 5, 2, 0, 0, 0], [4, 2, 0, 0, 0, 0], [6, 7, 8, 3, 5, 2]])
        logits = out(embed(tokens[:, :-1]))
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 9), tokens[:, 1:].reshape(-1), ignore_index=0)
        loss.backward()


def _rows(value: Value) -> tuple[int, int] | None:
    """The shape of the labels before they were flattened, if it is of rows."""
    here = value
    for _ in range(10):
        if len(here.shape) == 2:
            return here.shape if min(here.shape) > 1 else None
        call = here.maker
        if len(here.shape) != 1 or call is None or call.name not in SAME or not call.inputs:
            return None
        here = call.inputs[0]
    return None


def _padder(value: Value) -> Call | None:
    """The call of ``pad_sequence`` that labels came from."""
    call = value.maker
    for _ in range(10):
        if call is None or call.name == "pad_sequence":
            return call
        if call.name not in SAME or not call.inputs:
            return None
        call = call.inputs[0].maker
    return None


def _ignoring(spot: Spot, pad: int) -> tuple[str, tuple[Edit, ...]]:
    """The call of the loss with the padding named."""
    node = spot.node
    if isinstance(node, ast.Call) and node.lineno == node.end_lineno:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in LOSSES and not any(each.arg in (None, "ignore_index") for each in node.keywords):
            code = f"{spot.source.text(node)[:-1].rstrip().rstrip(',')}, ignore_index={pad})"
            return code, (spot.source.replaced(node, code),)
    return f"torch.nn.CrossEntropyLoss(ignore_index={pad})", ()
