"""PB507: a module that was built in inference mode."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inference import Block, around, block_of, fix_of, inference_modules
from pullback.diagnose.evidence.definitions import Scene, followed
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class InferenceModule(Cause):
    """A module that is built, loaded or moved in ``torch.inference_mode()`` has inference tensors for parameters.

    They cannot be trained, nor kept for a backward pass. Build the module outside, and use inference mode for its
    calls only. The same goes for ``net.to(device)`` and ``load_state_dict`` with ``assign=True``.
    """

    code = "PB507"
    title = "A module was built in inference mode, and its parameters cannot be trained."
    says = (
        "inference tensors cannot be saved for backward",
        "inplace update to inference tensor outside inferencemode",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = inference_modules(case)
        if not found or case.site is None:
            return None
        name, module = found[-1]
        parameter = next(each for each in module.parameters() if each.is_inference())
        block = self._built(case, name) or block_of(case, None)
        marks = [case.mark(say("the parameters of {name} are used here", name=name))]
        if block is not None:
            marks.append(block.mark(say("{name} was built in inference mode", name=name)))
        return self.found(
            say("The parameters of {name} are inference tensors, since it was built in inference mode.", name=name),
            marks,
            fix_of(case, block, f"{name} = {type(module).__name__}(...)    # outside of inference_mode"),
            tensors=[case.subject(parameter, "parameter", case.name_of(parameter, name))],
        )

    @staticmethod
    def _built(case: Case, name: str) -> Block | None:

        frame: Frame
        for depth, frame in reversed(list(enumerate(case.frames))):
            for step in followed(case, Scene.of(frame, depth), ast.Name(name, ast.Load())):
                if (found := around(step.scene.source, step.statement)) is not None:
                    return found
        return None

    @staticmethod
    def bad():
        import torch

        @torch.inference_mode()
        def build() -> torch.nn.Module:
            model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            return model.eval()

        model = build()
        model(torch.randn(3, 2)).sum().backward()

    @staticmethod
    def good():
        import torch

        def build() -> torch.nn.Module:
            model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            return model.eval()

        model = build()
        model(torch.randn(3, 2)).sum().backward()
