"""PBA353: a layer whose sigmoids or tanhs are saturated from the start."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch, mark_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.graph.saved import kept_by
from pullback.language import say

# A unit is saturated whose derivative is below this; a layer, if this share of its units is.
FLAT, SHARE = 1e-4, 0.9
# So many passes are looked at, so many elements are a layer at least, and inputs are large from here on.
PASSES, ELEMENTS, LARGE = 2, 64, 10.0
ACTIVATIONS = {"SigmoidBackward0": "sigmoid", "TanhBackward0": "tanh"}
LAYERS = ("AddmmBackward", "MmBackward", "ConvolutionBackward", "LinearBackward", "BmmBackward")
SHAPES = ("ViewBackward", "UnsafeViewBackward", "TBackward", "AddBackward", "ReshapeAliasBackward")


class SaturatedLayer(Fault):
    """Nearly all units of a layer are at the flat ends of their sigmoid or tanh, before training has begun.

    The derivative of ``sigmoid`` at 12 is 6e-6, of ``tanh`` at 8 5e-7: next to nothing comes through to the layers
    before. It happens when the input of the net is not normalised (pixels from 0 to 255, prices), or the weights are
    initialised too large.

    Bring the input to mean 0 and deviation 1, or at least into [0, 1]; initialise with ``nn.init.xavier_uniform_``; or
    put a ``BatchNorm`` or ``LayerNorm`` before the activation.
    """

    code = "PBA353"
    title = "Nearly all units of a layer are saturated from the start: almost no gradient comes through it."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.record.number >= PASSES or inside_functorch():
            return
        for node in backward.nodes:
            layer = _layer(node)
            if layer is None:
                continue
            share = _saturated(node)
            if share >= SHARE:
                audit.report(self._finding(audit, backward, node, layer, share))

    def _finding(self, audit: Audit, backward: Backward, node: Node, layer: Node, share: float) -> Diagnosis:
        activation = ACTIVATIONS[node.name()]
        largest = _largest(layer)
        marks = mark_of(audit, node, say("saturated here"))
        marks += mark_of(audit, layer, say("its input is made here"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        if largest > LARGE:
            cause = say(
                "{percent} % of the results of this {activation} are so near its ends that its derivative is below "
                "{flat}. The numbers that go into the layer before it reach {largest}: they are not normalised.",
                percent=int(100 * share), activation=activation, flat=FLAT, largest=f"{largest:.3g}",
            )  # fmt: skip
            fix = Fix(say("Normalise what goes into the layer."), "x = (x - x.mean()) / x.std()")
        else:
            cause = say(
                "{percent} % of the results of this {activation} are so near its ends that its derivative is below "
                "{flat}. The inputs of the layer before it are small: its weights or its bias are too large.",
                percent=int(100 * share), activation=activation, flat=FLAT,
            )  # fmt: skip
            fix = Fix(say("Initialise the layer with smaller weights."), "nn.init.xavier_uniform_(layer.weight)")
        return self.found(
            cause,
            marks,
            fix,
            confidence="medium",
            apart=say("If the net was trained before, and this layer is a gate that is open or shut, all is well."),
            useless=[say("A larger learning rate: the layers before get almost no gradient, the others too much.")],
        )

    @staticmethod
    def bad():
        import torch

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(50, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 1))
        pixels = torch.randint(0, 256, (8, 50)).float()
        net(pixels).square().mean().backward()

    @staticmethod
    def good():
        import torch

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(50, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 1))
        pixels = torch.randint(0, 256, (8, 50)).float() / 255
        net(pixels).square().mean().backward()


def _layer(node: Node) -> Node | None:
    """The layer right before an activation of several units."""
    if node.name() not in ACTIVATIONS:
        return None
    here = node.next_functions[0][0]
    for _ in range(4):
        if here is None or here.name().startswith(LAYERS):
            return here
        if not here.name().startswith(SHAPES):
            return None
        here = here.next_functions[0][0]
    return None


def _saturated(node: Node) -> float:
    """The share of the units whose derivative is next to zero."""
    result = dict(kept_by(node).tensors).get("result")
    if not isinstance(result, Tensor) or result.dim() < 2 or result.shape[1] < 2 or result.numel() < ELEMENTS:
        return 0.0
    values = result.detach().double()
    slope = values * (1 - values) if node.name().startswith("Sigmoid") else 1 - values**2
    return float((slope < FLAT).double().mean())


def _largest(layer: Node) -> float:
    """The largest number that goes into a layer, or zero if it was not kept."""
    kept = dict(kept_by(layer).tensors)
    given = next((kept[name] for name in ("mat1", "input", "self") if kept.get(name) is not None), None)
    return float(given.detach().abs().max()) if isinstance(given, Tensor) and given.numel() else 0.0
