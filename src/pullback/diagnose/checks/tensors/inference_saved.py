"""PB506: an inference tensor in a computation that is recorded."""

from __future__ import annotations

import ast

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inference import around, block_of, fix_of, inference_operands
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.evidence.frames import Frame, frames_of
from pullback.diagnose.values import Diagnosis
from pullback.graph.frames import variables
from pullback.language import say


class InferenceSaved(Cause):
    """Features that were computed in ``torch.inference_mode()`` cannot take part in training.

    To train a head on them, its backward pass must keep them, and inference tensors cannot be kept: autograd could not
    notice if they changed.

    Compute frozen features under ``torch.no_grad()``, which costs next to nothing more; or clone them outside of the
    block: ``features = features.clone()``.
    """

    code = "PB506"
    title = "A tensor that was made in inference mode was used in a computation that is recorded."
    says = ("inference tensors cannot be saved for backward",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        found = [each for each in inference_operands(case) if not isinstance(each[1], nn.Parameter)]
        node: ast.expr | None = found[0][0] if found else None
        tensor: Tensor | None = found[0][1] if found else None
        block = block_of(case, node, tensor)
        if tensor is None:
            place = self._argument(case)
            if place is not None:
                frame, node, tensor = place
                steps = definitions(case, node, frame)
                block = next((b for step in steps if (b := around(step.scene.source, step.statement))), block)
            else:
                tensor = self._handed(case)
        if tensor is None:
            return None
        name = case.name_of(tensor) or case.text(node) or say("a tensor")
        marks = [case.mark(say("{name} is used in a recorded computation here", name=name))]
        if block is not None:
            marks.append(block.mark(say("{name} was made in inference mode", name=name)))
        return self.found(
            say(
                "{name} is an inference tensor. The backward pass of this operation needs its values, and inference "
                "tensors cannot be kept for it.", name=name,
            ),
            marks,
            fix_of(case, block, f"{name} = {name}.clone()"),
            tensors=[case.subject(tensor, "saved", name)],
            useless=[say("detach(): the result is an inference tensor as well")],
        )  # fmt: skip

    @staticmethod
    def _argument(case: Case) -> tuple[Frame, ast.expr, Tensor] | None:
        """A variable of the frames, the innermost first, that is an inference tensor and no parameter."""
        for frame in reversed(case.frames):
            for name, thing in {**frame.local, **frame.module}.items():
                if issubclass(type(thing), Tensor) and thing.is_inference() and not isinstance(thing, nn.Parameter):
                    return frame, ast.Name(name, ast.Load()), thing
        return None

    @staticmethod
    def _handed(case: Case) -> Tensor | None:
        """An inference tensor among the variables of torch's own frames: an argument that has no name."""
        for frame, _, _ in frames_of(case.error.__traceback__):
            for thing in variables(frame).values():
                if issubclass(type(thing), Tensor) and thing.is_inference() and not isinstance(thing, nn.Parameter):
                    return thing  # type: ignore[no-any-return]
        return None

    @staticmethod
    def bad():
        import torch

        backbone, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
        with torch.inference_mode():
            features = backbone(torch.randn(5, 4)).relu()
        head(features).square().mean().backward()

    @staticmethod
    def good():
        import torch

        backbone, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
        with torch.no_grad():
            features = backbone(torch.randn(5, 4)).relu()
        head(features).square().mean().backward()
