"""PB613: .grad after zero_grad."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.values import cleared, last_pass, none_gradient, reached, root_alive
from pullback.diagnose.evidence.definitions import mark_node
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoneAfterClearing(Cause):
    """``zero_grad()`` sets the gradients to None (since torch 2.0), and after it there is nothing to look at.

    Read, clip or log gradients between ``backward()`` and ``zero_grad()``; the usual order is ``zero_grad()``,
    ``backward()``, clipping, ``step()``. ``zero_grad(set_to_none=False)`` fills with zeros instead, and then the
    program runs but reads zeros.
    """

    code = "PB613"
    title = "A gradient was used after zero_grad() had set it to None."
    says = ("nonetype",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = none_gradient(case)
        ran = last_pass(case)
        if found is None or found.tensor is None or case.site is None or ran is None:
            return None
        if not found.tensor.is_leaf or not found.tensor.requires_grad:
            return None
        root = root_alive(case, ran)
        frame, statement = cleared(case)
        came = root is not None and id(found.tensor) in reached([root])
        if not came and (root is not None or statement is None):
            return None
        grad, name = case.text(found.written), case.text(found.owner)
        marks = [case.mark(say("{name} is None here", name=grad))]
        if ran.spot is not None:
            marks.append(ran.spot.mark(say("the gradient was made here")))
        edits: tuple[Edit, ...] = ()
        source = case.site.source
        if statement is not None and frame is not None:
            source = frame.source
            marks.append(mark_node(source, statement, say("and cleared here"), frame.place.function))
            backward = source.statement_at(ran.spot.line) if ran.spot is not None else None
            same = backward is not None and source.parent(backward) is source.parent(statement)
            if same and backward is not None and ran.spot is not None and ran.spot.file == source.file:
                edits = (
                    source.inserted_before(backward, source.text(statement)),
                    Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, None),
                )
        return self.found(
            say("{name} had a gradient, but it has been set to None since the backward pass.", name=name),
            marks,
            Fix(
                say("Clear the gradients before backward(), not between backward() and their use."),
                source.code(*edits) or "optimizer.zero_grad(); loss.backward(); ...",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(found.tensor, "leaf", name)],
            confidence="high" if came or statement is not None else "medium",
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        size = net.weight.grad.norm()
        assert size

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        size = net.weight.grad.norm()
        assert size
