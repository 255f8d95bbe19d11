"""PB620: a computed tensor in an optimizer."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.leaves import as_leaf, fresh_leaf_inside
from pullback.diagnose.evidence.absent.parameters import ADD, parameters_written, written_as
from pullback.diagnose.evidence.absent.values import strictly
from pullback.diagnose.evidence.definitions import Definition, Scene, followed, made
from pullback.diagnose.evidence.seeds.roots import is_simple
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NonleafParameter(Cause):
    """An optimizer trains leaves: a tensor that was computed from another is none.

    ``torch.randn(3, 3, requires_grad=True) * 0.01`` is the result of a multiplication; the leaf is the tensor before
    it, which has no name. The same with ``.to(device)``, ``.cuda()``, ``.reshape(...)``, and with a part ``w[0]``.

    Do the arithmetic first and make the leaf last: ``(torch.randn(3, 3) * 0.01).requires_grad_()``, or
    ``nn.Parameter(torch.randn(3, 3) * 0.01)``. Create it on its device: ``torch.randn(3, device=device,
    requires_grad=True)``. To train a part of a tensor, train the whole and mask the gradient.

    Passing ``w.detach()`` runs, but trains nothing: no gradient arrives at that tensor.
    """

    code = "PB620"
    title = "An optimizer was given a computed tensor, which is not a leaf."
    says = ("can't optimize a non-leaf tensor",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame(*ADD) or {}
        tensor = local.get("param")
        if not isinstance(tensor, Tensor) or tensor.is_leaf or case.site is None:
            return None
        where = written_as(case, parameters_written(case), tensor) or self._listed(case, local, tensor)
        scene, node = where if where is not None else (None, None)
        steps = followed(case, scene, node, tensor) if scene is not None and node is not None else []
        name = scene.source.text(node) if scene is not None and node is not None else case.name_of(tensor, "a tensor")
        marks = [case.mark(say("{name} is given to the optimizer", name=name))]
        what = say("{name} is computed here", name=name)
        found = made(case, tensor, node if scene is not None and scene.frame is case.site else None, what)
        marks += found or ([steps[-1].mark(what)] if steps else [])
        code, edits = self._fix(case, scene, node, steps)
        grad_fn = tensor.grad_fn
        return self.found(
            say(
                "{name} is the result of an operation ({node}). Its gradient is passed on to the leaf behind it, and "
                "an optimizer would change a value that the next forward pass computes anew.",
                name=name, node=grad_fn and grad_fn.name(),
            ),
            marks,
            Fix(say("Do the arithmetic first, and make the leaf last."), code, edits, "high" if edits else "medium"),
            tensors=[case.subject(tensor, "parameter", name)],
            useless=[say("w.detach() or w.data in the list: the optimizer then trains a copy")],
        )  # fmt: skip

    @staticmethod
    def _listed(case: Case, local: dict[str, object], tensor: Tensor) -> tuple[Scene, ast.expr] | None:
        """The item of a list that is written out."""
        group = local.get("param_group")
        items = group.get("params") if isinstance(group, dict) else None
        node = parameters_written(case)
        if case.site is None or node is None or not isinstance(items, list):
            return None
        scene = Scene.of(case.site, len(case.frames) - 1)
        if isinstance(node, ast.Name | ast.Attribute) and (steps := followed(case, scene, node)):
            scene, node = steps[-1].scene, steps[-1].value
        if not isinstance(node, ast.List | ast.Tuple):
            return None
        number = next((number for number, each in enumerate(items) if each is tensor), None)
        if number is None or number >= len(node.elts) or isinstance(node.elts[number], ast.Dict | ast.Starred):
            return None
        return scene, node.elts[number]

    @staticmethod
    def _fix(
        case: Case, scene: Scene | None, node: ast.expr | None, steps: list[Definition]
    ) -> tuple[str, tuple[Edit, ...]]:
        code = "w = (torch.randn(3, 3) * 0.01).requires_grad_()"
        if steps:
            last = steps[-1]
            if not last.whole or isinstance(last.statement, ast.AugAssign | ast.Return):
                return code, ()
            source = last.scene.source
            edits = (source.replaced(last.value, as_leaf(source, last.value)),)
            return source.code(*edits), edits
        if scene is None or node is None or scene.frame is None:
            return code, ()
        if fresh_leaf_inside(node):
            edits = (scene.source.replaced(node, as_leaf(scene.source, node)),)
            return scene.source.code(*edits), edits
        base: ast.expr | None = node
        while isinstance(base, ast.Call | ast.Subscript):
            base = base.value if isinstance(base, ast.Subscript) else getattr(base.func, "value", None)
        leaf = strictly(scene.frame, base) if base is not None and is_simple(base) else None
        if isinstance(leaf, Tensor) and leaf.is_leaf and leaf.requires_grad and base is not None:
            edits = (scene.source.replaced(node, scene.source.text(base)),)
            return scene.source.code(*edits), edits
        return code, ()

    @staticmethod
    def bad():
        import torch

        scale = torch.nn.Parameter(torch.ones(4)).double()
        optimizer = torch.optim.Adam([{"params": [scale]}], lr=0.1)
        assert optimizer

    @staticmethod
    def good():
        import torch

        scale = torch.nn.Parameter(torch.ones(4).double())
        optimizer = torch.optim.Adam([{"params": [scale]}], lr=0.1)
        assert optimizer
