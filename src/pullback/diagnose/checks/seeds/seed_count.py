"""PB107: fewer seeds than roots, or more."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.evidence.seeds.roots import is_simple, pairs, seeds_written
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SeedCount(Cause):
    """Each output has its own seed: two outputs and one seed do not go together.

    ``torch.autograd.backward([a, b], [ga])`` does not reuse the seed. Give one for each output, in their order; for an
    output with one element ``None`` stands for 1.0. If all outputs are scalars leave the seeds out altogether, or add
    the outputs: ``(a + b).backward()``.

    A tensor of stacked seeds counts as one seed: write a list.
    """

    code = "PB107"
    title = "There are not as many seeds as outputs."
    says = ("gradients",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        asked = case.asked
        if asked is None or case.site is None or not ("got" in case.message and "tensors and" in case.message):
            return None
        count, given = len(asked.roots), len(asked.seeds)
        node = seeds_written(case)
        marks = [case.mark(say("outputs: {count}, seeds: {given}", count=count, given=given))]
        marks += made(case, None, node, say("the seeds were made here"))
        text, edits = self._fix(case, node)
        return self.found(
            say(
                "autograd was given {count} outputs, but {given} seeds. Each output needs one of its own; for an "
                "output with one element it may be None.",
                count=count, given=given,
            ),
            marks,
            Fix(say("Give one seed for each output, in the same order."), text, edits, "high" if edits else "medium"),
            tensors=[case.subject(root, "root", f"[{number}]") for number, root in enumerate(asked.tensors)],
        )  # fmt: skip

    @staticmethod
    def _fix(case: Case, node: ast.expr | None) -> tuple[str, tuple[Edit, ...]]:
        assert case.asked is not None
        assert case.site is not None
        seeds = []
        all_pairs = pairs(case)
        given = len(case.asked.seeds)
        listed = node.elts if isinstance(node, ast.List | ast.Tuple) else [node] if given == 1 else []
        for pair in all_pairs:
            if pair.number < len(listed):
                seeds.append(case.text(listed[pair.number]))
            elif isinstance(pair.root, Tensor) and pair.root.numel() == 1:
                seeds.append("None")
            elif is_simple(pair.written):
                seeds.append(f"torch.ones_like({case.text(pair.written)})")
            else:
                return "", ()
        text = f"[{', '.join(seeds)}]"
        if node is not None and not listed and given:
            return "", ()  # which seed belongs to which output cannot be told
        if node is None or not listed or given > len(all_pairs):
            return text, ()
        return text, (case.site.source.replaced(node, text),)

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        outputs = [w * 2, w.exp()]
        torch.autograd.grad(outputs, w, grad_outputs=torch.ones(3))

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        outputs = [w * 2, w.exp()]
        torch.autograd.grad(outputs, w, grad_outputs=[torch.ones(3), torch.ones(3)])
