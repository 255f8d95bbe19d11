"""PB642: an optimizer of the user's reads its state before it is there."""

from __future__ import annotations

import ast
from typing import Any

from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.formulas import key_fix
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class StateMissing(Cause):
    """The ``step`` of an optimizer of your own read something from ``self.state[p]`` that nobody had put there.

    ``self.state`` is empty at first: it gives an empty dictionary for each parameter that is asked for. The optimizers
    of torch fill it in the first step: ``state = self.state[p]``, then ``if not state: state["step"] = 0``. After
    ``load_state_dict`` it holds what was saved, and nothing else: a key that a newer version of the class added is
    missing too.
    """

    code = "PB642"
    title = "An optimizer read something from its state that had not been put there."
    raises = (KeyError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        node = case.site.node if case.site is not None else None
        if case.site is None or not isinstance(node, ast.Subscript) or not case.error.args:
            return None
        owner = next((each for frame in reversed(case.frames) if (each := _optimizer(frame.local)) is not None), None)
        if owner is None:
            return None
        kept, text = case.site.evaluated(node.value), case.text(node.value)
        mine = any(kept is each for each in owner.state.values()) if isinstance(kept, dict) else False
        if not mine and not text.startswith("self.state["):
            return None
        marks = [case.mark(say("{name} has no key {key} here", name=text, key=repr(case.error.args[0])))]
        marks += [each.mark(say("called from here")) for each in case.frames[-2:-1]]
        begin = f"if not {text}:\n    {text}[{case.text(node.slice)}] = ..."
        return self.found(
            say(
                "The state of a parameter is empty until {kind} fills it, and nothing has put {key} there.",
                kind=type(owner).__name__, key=repr(case.error.args[0]),
            ),
            marks,
            key_fix(case) or Fix(say("Fill the state in the first step."), begin),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Momentum(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 0.1})

            @torch.no_grad()
            def step(self):
                for p in self.param_groups[0]["params"]:
                    state = self.state[p]
                    state["buffer"] = state["buffer"] * 0.9 + p.grad
                    p -= 0.1 * state["buffer"]

        w = torch.randn(3, requires_grad=True)
        w.square().sum().backward()
        Momentum([w]).step()

    @staticmethod
    def good():
        import torch

        class Momentum(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 0.1})

            @torch.no_grad()
            def step(self):
                for p in self.param_groups[0]["params"]:
                    state = self.state[p]
                    if not state:
                        state["buffer"] = torch.zeros_like(p)
                    state["buffer"] = state["buffer"] * 0.9 + p.grad
                    p -= 0.1 * state["buffer"]

        w = torch.randn(3, requires_grad=True)
        w.square().sum().backward()
        Momentum([w]).step()


def _optimizer(local: Any) -> Optimizer | None:
    owner = local.get("self")
    own = isinstance(owner, Optimizer) and not type(owner).__module__.startswith("torch.")
    return owner if own else None
