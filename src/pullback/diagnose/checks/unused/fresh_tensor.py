"""PB602: a new view of an input."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inputs import Unused, unused_input
from pullback.diagnose.evidence.definitions import called, definitions, made
from pullback.diagnose.evidence.seeds.roots import is_simple
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class FreshTensor(Cause):
    """``x[0]``, ``x.view(...)`` or ``x.to(device)`` makes a new tensor each time; the output does not depend on it.

    The output was computed from ``x``. A part of it that is taken afterwards is a result of ``x`` as well, a sister of
    the output and not its ancestor, though it shares the memory.

    Differentiate by ``x`` and take the part of the result: ``torch.autograd.grad(loss, x)[0][0]``. Or take the part
    first and compute with that: ``x0 = x[0]``, ``loss = f(x0)``.

    ``allow_unused=True`` only turns the error into a None.
    """

    code = "PB602"
    title = "A gradient was asked for by a tensor that was made beside the output, not before it."
    says = ("not have been used in the graph",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = unused_input(case)
        if found is None or not found.after or case.site is None:
            return None
        name = case.text(found.written) or case.name_of(found.tensor) or say("the input")
        node = found.tensor.grad_fn
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        marks += made(case, found.tensor, found.written, say("{name} was made here", name=name))
        code, edits = self._fix(case, found)
        return self.found(
            say(
                "{name} is a new tensor ({node}) that was made from what the output depends on. The output was not "
                "computed from it, so there is no path from the output to {name}.",
                name=name, node=node and node.name(),
            ),
            marks,
            Fix(
                say("Differentiate by the tensor that was used, and take the part of the gradient."),
                code, edits, "high" if edits and not self._again(case) else "medium",
            ),
            tensors=[case.subject(found.tensor, "input", name)],
            useless=[say("allow_unused=True: the gradient is None then")],
        )  # fmt: skip

    @staticmethod
    def _again(case: Case) -> bool:
        """Whether the function asks for other gradients too, which may fail alike."""
        assert case.site is not None
        calls = [each for each in ast.walk(case.site.scope) if isinstance(each, ast.Call) and called(each) == "grad"]
        return len(calls) > 1

    @staticmethod
    def _fix(case: Case, found: Unused) -> tuple[str, tuple[Edit, ...]]:
        assert case.site is not None
        source, node = case.site.source, found.written
        if isinstance(node, ast.Name) and (steps := definitions(case, node, tensor=found.tensor)) and steps[0].whole:
            node = steps[0].value if steps[0].scene.frame is case.site else None
        base = node
        while isinstance(base, ast.Subscript | ast.Call):
            base = base.func.value if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) else (
                base.value if isinstance(base, ast.Subscript) else None)  # fmt: skip
        if node is None or base is None or not is_simple(base) or case.call is None or found.written is None:
            return "torch.autograd.grad(loss, x)[0][...]", ()
        whole, inner = source.text(base), source.text(node)
        call, first = case.call, found.written
        if not found.alone or not inner.startswith(whole) or call.lineno != call.end_lineno:
            return f"torch.autograd.grad(loss, {whole})[0]{inner[len(whole) :]}", ()
        line = source.lines[call.lineno - 1].encode()
        before, after = line[call.col_offset : first.col_offset], line[first.end_col_offset : call.end_col_offset]
        text = f"({before.decode()}{whole}{after.decode()}[0]{inner[len(whole) :]},)"
        return text, (source.replaced(call, text),)

    @staticmethod
    def bad():
        import torch

        x = torch.randn(2, 3, requires_grad=True)
        energy = x.pow(2).sum()
        flat = x.view(-1)
        force = torch.autograd.grad(energy, flat)[0]
        assert force.shape == (6,)

    @staticmethod
    def good():
        import torch

        x = torch.randn(2, 3, requires_grad=True)
        flat = x.view(-1)
        energy = flat.pow(2).sum()
        force = torch.autograd.grad(energy, flat)[0]
        assert force.shape == (6,)
