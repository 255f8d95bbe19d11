"""PB838: models of different shapes were to be stacked."""

from __future__ import annotations

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class UnlikeModels(Cause):
    """``stack_module_state`` puts the parameters of several models into one tensor each: they must have equal shapes.

    ``vmap`` runs one program for all models of an ensemble, with a leading dimension for the models. That needs models
    of one architecture: the same class, the same parameters, the same shapes.

    Build them all with the same sizes. Models of different sizes are run in a loop, or in groups of equal ones.
    """

    code = "PB838"
    title = "Models whose parameters have different shapes were to be stacked."
    says = ("stack expects each tensor to be equal size", "Expected all models to be of the same class")

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("_functorch/functional_call.py", "stack_module_state")
        models = (
            list(local["models"]) if local and isinstance(local.get("models"), list | tuple | nn.ModuleList) else []
        )
        if case.site is None or len(models) < 2 or not all(isinstance(each, nn.Module) for each in models):
            return None
        given = case.argument("models", 0)
        name = case.text(given) or say("the models")
        cause = _difference(models, name)
        if not cause:
            return None
        marks = [case.mark(say("stacked here")), *made(case, None, given, say("the models were made here"))]
        return self.found(
            cause,
            marks,
            Fix(say("Build all models with the same sizes, or run those of different sizes in a loop."),
                f"outputs = [model(x) for model in {name}]"),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        models = [torch.nn.Linear(2, size) for size in (3, 4)]
        torch.func.stack_module_state(models)

    @staticmethod
    def good():
        import torch

        models = [torch.nn.Linear(2, size) for size in (3, 3)]
        torch.func.stack_module_state(models)


def _difference(models: list[nn.Module], name: str) -> str:
    """What tells the first of the models that is unlike the first one from it."""
    first = {path: tuple(each.shape) for path, each in nn.Module.state_dict(models[0]).items()}
    for number, model in enumerate(models[1:], 1):
        if type(model) is not type(models[0]):
            return say("{name}[0] is {first}, and {name}[{number}] is {other}.", name=name, number=number,
                       first=type(models[0]).__name__, other=type(model).__name__)  # fmt: skip
        own = {path: tuple(each.shape) for path, each in nn.Module.state_dict(model).items()}
        for path in [*first, *own]:
            if first.get(path) != own.get(path):
                return say(
                    "{path} has shape {first} in {name}[0], and {other} in {name}[{number}].", path=path, name=name,
                    number=number, first=first.get(path, say("none")), other=own.get(path, say("none")),
                )  # fmt: skip
    return ""
