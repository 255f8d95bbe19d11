"""PBA134: ``nn.Parameter`` of a computed tensor."""

from __future__ import annotations

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.training.loop import in_optimizers
from pullback.diagnose.values import Fix
from pullback.language import say


class ParameterOfResult(Fault):
    """``nn.Parameter(computed)`` makes a new leaf: it does not depend on what it was computed from.

    A parameter has no history. ``nn.Parameter(w * 2)`` has the value of ``w * 2`` at this moment, but gradients that
    reach it go no further, so ``w.grad`` stays ``None``. Registering the result so that ``forward`` can use it is the
    usual reason; it cuts the graph.

    Compute it in ``forward`` from ``w`` each time, or use ``torch.nn.utils.parametrize``. Where only the initial value
    is meant, say so: ``nn.Parameter((w * 2).detach())``. ``requires_grad=True`` changes nothing.
    """

    code = "PBA134"
    title = "A parameter was made of a computed tensor, which cuts it off from what it was computed from."

    def __init__(self) -> None:
        self._reached: set[int] = set()

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if audit.wrapped:
            self._reached.update(map(id, backward.leaves))

    def at_end(self, audit: Audit) -> None:
        trained = in_optimizers(audit)
        for each in audit.wrapped:
            made = each.made()
            sources = [source for one in each.sources if (source := one()) is not None]
            if made is None or id(made) not in self._reached or not sources:
                continue
            if any(id(source) in self._reached for source in sources) or not self._meant(sources, trained):
                continue
            name, origin = audit.name_of(made, "the parameter"), audit.name_of(sources[0], "its source")
            audit.report(
                self.found(
                    say(
                        "{name} was made of a tensor that depends on {source}, but is a leaf of its own: gradients "
                        "that reach it never get to {source}.",
                        name=name,
                        source=origin,
                    ),
                    [each.spot.mark(say("the history is cut off here"))],
                    Fix(say("Compute it from {source} where it is used, without nn.Parameter.", source=origin)),
                    tensors=[audit.subject(made, "parameter", name), audit.subject(sources[0], "source", origin)],
                    useless=[say("requires_grad=True: it makes a leaf, not a history")],
                )
            )

    @staticmethod
    def _meant(sources: list[Tensor], trained: set[int]) -> bool:
        """Whether the sources were to be trained."""
        return any(isinstance(each, nn.Parameter) or id(each) in trained for each in sources)

    @staticmethod
    def bad():
        import torch

        base = torch.nn.Parameter(torch.randn(4))
        scaled = torch.nn.Parameter(base.exp())
        for _ in range(2):
            loss = (scaled - 1).square().sum()
            loss.backward()
            scaled.grad = None

    @staticmethod
    def good():
        import torch

        base = torch.nn.Parameter(torch.randn(4))
        for _ in range(2):
            loss = (base.exp() - 1).square().sum()
            loss.backward()
            base.grad = None
