"""PBA344: a layer whose units are all off."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.births import watch
from pullback.diagnose.evidence.numbers.find import mark_of
from pullback.diagnose.evidence.numbers.zero import ACCUMULATE
from pullback.diagnose.values import Fix
from pullback.language import say

SHAPES = (
    "ViewBackward",
    "UnsafeViewBackward",
    "TBackward",
    "SqueezeBackward",
    "AddBackward",
    "TransposeBackward",
    "PermuteBackward",
)
UNITS = 4
ELEMENTS = 16


class DeadUnits(Fault):
    """All units of a ReLU layer are off for the whole batch: no gradient comes through it.

    A ReLU passes the gradient on only where its input is positive. If a bias is far below zero, the learning rate threw
    the weights there, or the inputs are not normalised, every unit is off for every sample, and the layer and all
    before it get gradients of exactly zero: training cannot bring them back.

    Look at the initialisation and the learning rate of the layer; normalise its input; or use an activation with a
    slope on both sides: ``LeakyReLU``, ``GELU``, ``SiLU``. Some units that are off are normal.
    """

    code = "PBA344"
    title = "All units of a ReLU layer are off for the whole batch: nothing before it gets a gradient."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        watch(audit).begin(audit, backward)

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        seen = watch(audit)
        seen.finish(audit, backward)
        for index in seen.dead:
            node = backward.nodes[index]
            if node.name().startswith(("ReluBackward", "ThresholdBackward")) and _is_layer(node):
                self._report(audit, backward, node)

    def _report(self, audit: Audit, backward: Backward, node: Node) -> None:
        leaves = _parameters(node)
        name = audit.name_of(leaves[0], "its weight") if leaves else "its weight"
        marks = mark_of(audit, node, say("all of its results are zero"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        audit.report(
            self.found(
                say(
                    "A gradient arrived at this ReLU, and none of it came through: all of its inputs are negative. "
                    "{name} and everything before it gets a gradient of exactly zero by this way.",
                    name=name,
                ),
                marks,
                Fix(
                    say(
                        "Look at the initialisation and the learning rate, or use an activation with a slope on both "
                        "sides."
                    ),
                    "torch.nn.functional.leaky_relu(h, 0.01)",
                ),
                tensors=[audit.subject(leaf, "parameter") for leaf in leaves[:2]],
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
        with torch.no_grad():
            net[0].bias.fill_(-1e3)
        net(torch.randn(10, 3)).mean().backward()

    @staticmethod
    def good():
        import torch

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
        with torch.no_grad():
            net[0].bias.copy_(torch.tensor([-1e3, -1e3, -1e3, 0.0, 0.0, 0.0]))
        net(torch.randn(10, 3)).mean().backward()


def _is_layer(node: Node) -> bool:
    """Whether it is the activation of a layer of several units, for several samples."""
    shape = tuple(node._input_metadata[0].shape)
    if len(shape) < 2 or shape[0] < 2 or max(shape[1], shape[-1]) < UNITS or _product(shape) < ELEMENTS:
        return False
    child = node.next_functions[0][0]
    for _ in range(5):
        if child is None:
            return False
        if child.name().startswith(
            ("AddmmBackward", "MmBackward", "ConvolutionBackward", "NativeBatchNorm", "LinearBackward", "BmmBackward")
        ):
            return True
        if not child.name().startswith(SHAPES):
            return False
        child = child.next_functions[0][0]
    return False


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _parameters(node: Node) -> list[Tensor]:
    """The leaves right behind a layer."""
    found: list[Tensor] = []
    stack = [child for child, _ in node.next_functions if child is not None]
    for _ in range(4):
        for child in stack:
            if child.name() == ACCUMULATE:
                found.append(child.variable)  # type: ignore[attr-defined]
        stack = [below for child in stack for below, _ in child.next_functions if below is not None][:20]
    return sorted(found, key=lambda leaf: -leaf.dim())
