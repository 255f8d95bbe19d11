"""PB623: layers in a plain list."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import hidden_in, modules_in, parameters_written
from pullback.diagnose.evidence.definitions import followed
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoParametersHidden(Cause):
    """A module knows the parameters of its attributes, not those in a plain list or dict of Python.

    ``self.layers = [nn.Linear(3, 3), ...]`` is not seen by ``parameters()``, ``to(device)`` and ``state_dict()``.
    Write ``self.layers = nn.ModuleList([...])``, ``nn.ModuleDict({...})``, and for tensors ``nn.ParameterList([...])``.

    When only some layers hide in a list nothing fails: they are just not trained.
    """

    code = "PB623"
    title = "An optimizer was given no parameters: the layers are in a plain list, where the module does not see them."
    says = ("optimizer got an empty parameter list",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        for scene, each, module in modules_in(case, parameters_written(case)):
            if any(True for _ in module.parameters()) or (hidden := hidden_in(module)) is None:
                continue
            path, attribute, holder = hidden
            name = scene.source.text(each)
            marks = [case.mark(say("{name} has no parameters", name=name))]
            owner = each
            for part in path.split(".") if path else ():
                owner = ast.Attribute(owner, part, ast.Load())
            step = next(iter(followed(case, scene, ast.Attribute(owner, attribute, ast.Load()))), None)
            edits: tuple[Edit, ...] = ()
            if step is not None:
                marks.append(step.mark(say("a plain list: the module does not see what is in it")))
                lines = step.scene.source.lines
                nn_name = "nn" if any("torch.nn as nn" in line or "import nn" in line for line in lines) else "torch.nn"
                edits = (step.scene.source.replaced(step.value, f"{nn_name}.{holder}({step.text})"),)
            return self.found(
                say(
                    "{name} keeps its layers in {attribute}, which is a plain container of Python: parameters() does "
                    "not look into it.", name=name, attribute=attribute,
                ),
                marks,
                Fix(
                    say("Put them into {holder}.", holder=f"nn.{holder}"),
                    case.site.source.code(*edits) if case.site else "", edits, "high" if edits else "medium",
                ),
            )  # fmt: skip
        return None

    @staticmethod
    def bad():
        import torch

        class Tower(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = [torch.nn.Linear(3, 3) for _ in range(2)]

        tower = Tower()
        optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)
        assert optimizer

    @staticmethod
    def good():
        import torch

        class Tower(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])

        tower = Tower()
        optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)
        assert optimizer
