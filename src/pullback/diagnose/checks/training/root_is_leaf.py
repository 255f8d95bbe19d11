"""PBA106: the pass begins at, or reaches only, a tensor that was cut off and made a leaf."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from weakref import ref

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import assignments, in_optimizers
from pullback.diagnose.values import Edit, Fix, Subject
from pullback.language import say

MAKES_LEAF = frozenset({"set requires_grad", "requires_grad_", "tensor", "as_tensor", "new_tensor"})


@dataclass
class _Cut:
    """A pass that reached only a leaf of this kind."""

    passed: Spot
    made: Spot
    name: str
    subject: Subject
    parameters: list[ref[Tensor]] = field(default_factory=list)


class RootIsLeaf(Fault):
    """``backward()`` ran, but only reached a tensor that had been made a leaf by hand, and no parameter.

    ``loss.requires_grad = True`` and ``torch.tensor(..., requires_grad=True)`` on computed values silence "element 0 of
    tensors does not require grad": they make a *new* leaf that has no history. The pass then ends at that leaf, the
    parameters keep ``.grad = None`` and nothing is trained.

    Mend the place where the graph was cut instead: leave out ``no_grad()``, ``detach()`` or ``item()``, and put losses
    together with ``torch.stack(losses)`` or ``sum(losses)``. Making the optimizer, the learning rate or the loss
    different does not help, nor does ``retain_graph=True``.
    """

    code = "PBA106"
    title = "The backward pass ended at a tensor that had been cut off and declared a leaf: it reached no parameter."

    def __init__(self) -> None:
        self._cuts: list[_Cut] = []
        self._reached: set[int] = set()

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if not backward.record.accumulates or backward.spot is None or backward.inputs:
            return
        leaves = backward.leaves
        self._reached.update(map(id, leaves))
        if len(self._cuts) >= 5 or not leaves or len(leaves) > 3:
            return
        if any(isinstance(leaf, nn.Parameter) for leaf in leaves):
            return
        cuts = [(leaf, cut) for leaf in leaves if (cut := self._cut(audit, leaf)) is not None]
        if len(cuts) < len(leaves):
            return
        trained = in_optimizers(audit)
        if any(id(leaf) in trained for leaf in leaves):
            return
        leaf, (made, parameters) = cuts[0]
        name = audit.name_of(leaf, "")
        self._cuts.append(_Cut(backward.spot, made, name, audit.subject(leaf, "leaf", name or "a tensor"), parameters))

    @staticmethod
    def _cut(audit: Audit, leaf: Tensor) -> tuple[Spot, list[ref[Tensor]]] | None:
        """Where a leaf was declared, and the parameters that it had been computed from."""
        value = audit.tape.value_of(leaf)
        maker = value.maker if value is not None else None
        if maker is None or maker.name not in MAKES_LEAF or maker.spot is None:
            return None
        assert value is not None
        found: dict[int, ref[Tensor]] = {}
        for number, call in enumerate(audit.tape.history(value)):
            if number > 2000:
                break
            for each in call.inputs:
                tensor = each.tensor()
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                    found[id(tensor)] = each.tensor
        return (maker.spot, list(found.values())) if found else None

    def at_end(self, audit: Audit) -> None:
        for cut in self._cuts:
            alive = [each() for each in cut.parameters]
            if any(each is not None and (id(each) in self._reached) for each in alive):
                continue
            edits = self._edits(cut)
            marks = [cut.made.mark(say("a new leaf, without a history")), cut.passed.mark(say("ends at that leaf"))]
            audit.report(
                self.found(
                    say(
                        "{name} was computed from parameters, but declared a leaf afterwards. A leaf has no history: "
                        "the "
                        "pass ends there, and no parameter gets a gradient.",
                        name=cut.name or say("The tensor"),
                    ),
                    marks,
                    Fix(
                        say("Do not declare it: mend the place where the graph was cut."),
                        cut.made.source.code(*edits) or "torch.stack(losses).sum().backward()",
                        edits,
                        "high" if edits else "medium",
                    ),
                    tensors=[cut.subject],
                    useless=[
                        say("requires_grad = True on the loss: it silences the error, and cuts the graph for good"),
                        say("retain_graph=True: there is no graph behind the leaf that could be kept"),
                    ],
                )
            )

    @staticmethod
    def _edits(cut: _Cut) -> tuple[Edit, ...]:
        """``torch.tensor(list, requires_grad=True)`` becomes ``torch.stack(list)``."""
        node, source = cut.made.node, cut.made.source
        if not (isinstance(node, ast.Call) and source.text(node.func) == "torch.tensor" and node.args):
            return ()
        given = node.args[0]
        if isinstance(given, ast.Name):
            made = [each for each in assignments(source, cut.made.scope, given.id) if each.lineno < node.lineno]
            if made and isinstance(made[-1].value, ast.ListComp | ast.List) and ".item()" not in source.text(made[-1]):
                return (source.replaced(node, f"torch.stack({given.id})"),)
        if isinstance(given, ast.List | ast.ListComp) and ".item()" not in source.text(given):
            return (source.replaced(node, f"torch.stack({source.text(given)})"),)
        return ()

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(2):
            loss = net(torch.randn(8, 4)).square().mean().detach()
            loss.requires_grad = True
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(2):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
