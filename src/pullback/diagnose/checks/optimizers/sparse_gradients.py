"""PB625: sparse gradients in an optimizer that takes dense ones."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import sources_of
from pullback.diagnose.evidence.definitions import is_true, mark_node
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SparseGradients(Cause):
    """``Embedding(sparse=True)`` gives its weight a sparse gradient, which most optimizers cannot use.

    Adam, AdamW and RMSprop keep averages of all elements and want dense gradients. ``SGD``, ``Adagrad`` and
    ``SparseAdam`` take sparse ones (not with ``weight_decay``).

    Leave ``sparse=True`` out, unless the table is so large that a dense gradient does not fit; then give the
    embedding an optimizer of its own, ``SparseAdam(embedding.parameters())``, and the rest another one.
    """

    code = "PB625"
    title = "An optimizer that takes dense gradients was given a sparse one."
    says = (
        "does not support sparse gradients", "not compatible with sparse gradients",
        "add(sparse, dense) is not supported",
    )  # fmt: skip

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        found = self._sparse(case)
        if found is None:
            return None
        optimizer, tensor = found
        name, kind = case.name_of(tensor, "a parameter"), type(optimizer).__name__
        marks = [case.mark(say("the sparse gradient of {name} fails here", name=name))]
        edits: tuple[Edit, ...] = ()
        places = [(source, node) for source in sources_of(case) for node in _asked(source.tree)]
        for source, node in places[:2]:
            marks.append(mark_node(source, node, say("sparse gradients are asked for here")))
        if len(places) == 1:
            source, node = places[0]
            edits = (source.replaced(node, "False"),)
        return self.found(
            say("{name} has a sparse gradient, since its embedding was made with sparse=True; {kind} takes dense "
                "gradients only.", name=name, kind=kind),
            marks,
            Fix(
                say("Leave sparse=True out, or give this parameter to SparseAdam."),
                case.site.source.code(*edits) or f"torch.optim.SparseAdam([{name}])",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "parameter", name)],
        )  # fmt: skip

    @staticmethod
    def _sparse(case: Case) -> tuple[Any, Tensor] | None:
        for _, optimizer in case.holds(Optimizer):
            for group in optimizer.param_groups:
                for each in group["params"]:
                    if each.grad is not None and each.grad.is_sparse:
                        return optimizer, each
        return None

    @staticmethod
    def bad():
        import torch

        table = torch.nn.EmbeddingBag(9, 2, sparse=True, mode="sum")
        optimizer = torch.optim.RMSprop(table.parameters())
        table(torch.tensor([[1, 2], [3, 3]])).square().sum().backward()
        optimizer.step()

    @staticmethod
    def good():
        import torch

        table = torch.nn.EmbeddingBag(9, 2, mode="sum")
        optimizer = torch.optim.RMSprop(table.parameters())
        table(torch.tensor([[1, 2], [3, 3]])).square().sum().backward()
        optimizer.step()


def _asked(tree: ast.Module) -> list[ast.expr]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [each.value for call in calls for each in call.keywords if each.arg == "sparse" and is_true(each.value)]
