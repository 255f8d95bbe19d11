"""PB636: an optimizer of the user's did not call the base class."""

from __future__ import annotations

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class BaseNotCalled(Cause):
    """An optimizer of your own did not call ``super().__init__(params, defaults)``.

    The base class makes ``param_groups``, ``state`` and ``defaults``, registers the hooks, and checks the
    parameters. Without it ``zero_grad()``, ``step()`` and ``state_dict()`` find nothing. Call it first, with a
    dict of the settings, and go over ``self.param_groups`` in ``step``; a list of your own is not seen by
    ``zero_grad``, schedulers or checkpoints.
    """

    code = "PB636"
    title = "An optimizer did not call the constructor of its base class."
    says = (
        "object has no attribute 'defaults'",
        "object has no attribute 'param_groups'",
        "object has no attribute '_optimizer_",
    )
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        owner = getattr(case.error, "obj", None)
        if not isinstance(owner, torch.optim.Optimizer) or "param_groups" in vars(owner):
            return None
        name = type(owner).__name__
        method = method_of(type(owner), "__init__")
        marks = [case.mark(say("{name} lacks what its base class makes", name=name))]
        if method is not None:
            marks.append(method.mark(method.node, say("super().__init__ is not called in here")))
        given = method.names[1] if method is not None and len(method.names) > 1 else "params"
        settings = ", ".join(f"{each}={each}" for each in (method.names[2:] if method is not None else []))
        edits: tuple[Edit, ...] = ()
        if method is not None and method.own and method.body:
            listed = f"{given} = list({given})\nsuper().__init__({given}, dict({settings}))"
            edits = method.rewrite().before(method.body[0], listed).edits()
        return self.found(
            say(
                "{name}.__init__ does not call super().__init__, which makes param_groups, state and defaults.",
                name=name,
            ),
            marks,
            Fix(
                say("Call it first, with the parameters and a dict of the settings."),
                f"super().__init__({given}, dict({settings}))",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Descent(torch.optim.Optimizer):
            def __init__(self, params, lr):
                self.values, self.lr = list(params), lr

            @torch.no_grad()
            def step(self):
                for each in self.values:
                    each -= self.lr * each.grad

        net = torch.nn.Linear(2, 1)
        optimizer = Descent(net.parameters(), 0.1)
        optimizer.zero_grad()

    @staticmethod
    def good():
        import torch

        class Descent(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for each in group["params"]:
                        each -= group["lr"] * each.grad

        net = torch.nn.Linear(2, 1)
        optimizer = Descent(net.parameters(), 0.1)
        optimizer.zero_grad()
