"""PBA343: the sum of something normalised."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import mark_of
from pullback.diagnose.evidence.numbers.zero import cut_leaves, parents_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.graph.saved import kept_by
from pullback.language import say

NORMS = {"SoftmaxBackward": "softmax", "NativeLayerNormBackward": "layer_norm", "NativeBatchNormBackward": "batch_norm"}


class ConstantSum(Fault):
    """The sum of a softmax is one, the mean of a normalised layer is its bias: their gradients are zero.

    ``net(x).sum().backward()`` is a popular smoke test. If the net ends in a softmax, or in a layer norm whose weight
    is still one everywhere, the sum is a constant, whatever the parameters before it are: their gradients are rounding
    noise (1e-8), not what training would give.

    Multiply by a random tensor first, ``(net(x) * torch.randn_like(net(x))).sum()``, or use the real loss.
    """

    code = "PBA343"
    title = "What is differentiated is constant: the sum over the dimension of a normalisation."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if not any(node.name().startswith(tuple(NORMS)) for node in backward.nodes):
            return
        parents = parents_of(backward)
        roots = {root.grad_fn for root in backward.roots if isinstance(root, Tensor)}
        constant: dict[Node, Node] = {}
        for node in backward.nodes:
            kind = next((kind for kind in NORMS if node.name().startswith(kind)), None)
            if (
                kind is not None
                and not hasattr(node, "_forward_cls")
                and node not in roots
                and (above := _summed(node, parents, roots))
            ) and all(_spans(node, each) for each in above):
                constant[node] = above[0]
        found: dict[Node, list[Tensor]] = {}
        for leaf, node in cut_leaves(backward, lambda node, index: index == 0 and node in constant):
            found.setdefault(node, []).append(leaf)
        for node, leaves in found.items():
            audit.report(self._finding(audit, backward, node, constant[node], leaves))

    def _finding(self, audit: Audit, backward: Backward, node: Node, above: Node, leaves: list[Tensor]) -> Diagnosis:
        operation = next(text for kind, text in NORMS.items() if node.name().startswith(kind))
        marks = mark_of(audit, above, say("summed here"))
        marks += mark_of(audit, node, say("normalised here"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        name = audit.name_of(leaves[0], "a leaf")
        return self.found(
            say(
                "The sum over the dimension of {operation} does not depend on what goes into it. The gradient of "
                "{name} is zero up to rounding.",
                operation=operation, name=name,
            ),
            marks,
            Fix(
                say("For a smoke test, weight the elements at random before the sum; for training, use a real loss."),
                "(out * torch.randn_like(out)).sum().backward()",
            ),
            tensors=[audit.subject(leaf, "leaf") for leaf in leaves[:3]],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Softmax(dim=-1))
        net(torch.randn(5, 4)).mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Softmax(dim=-1))
        out = net(torch.randn(5, 4))
        (out * torch.randn_like(out)).mean().backward()


def _summed(node: Node, parents: dict[Node, list[Node]], roots: set[Any]) -> list[Node]:
    """The sums that use a node, directly; empty if anything else uses it."""
    found = []
    for above in parents.get(node, []):
        if above.name().startswith(("SumBackward", "MeanBackward")):
            found.append(above)
        else:
            return []
    return found


def _spans(node: Node, above: Node) -> bool:
    """Whether a sum is over all that was normalised."""
    whole = above.name() in {"SumBackward0", "MeanBackward0"}
    dims = None if whole else {_signed(each) for each in getattr(above, "_saved_dim", ())}
    size = len(getattr(above, "_saved_self_sym_sizes", ()))
    own: Any = node
    if node.name().startswith("SoftmaxBackward"):
        return dims is None or any(each % size == _signed(own._saved_dim) % size for each in dims)
    weight = dict(kept_by(node).tensors).get("weight")
    if weight is not None and not torch.equal(weight, weight.flatten()[:1].expand_as(weight)):
        return False
    if node.name().startswith("NativeLayerNorm"):
        count = len(own._saved_normalized_shape)
        return dims is None or {each % size for each in dims} >= set(range(size - count, size))
    return bool(own._saved_training) and (dims is None or {each % size for each in dims} >= {0, *range(2, size)})


def _signed(number: Any) -> int:
    value = int(number)
    return value - 2**64 if value >= 2**63 else value
