"""PB622: a generator of parameters that was gone through before."""

from __future__ import annotations

import ast
from types import GeneratorType
from typing import Any

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import parameters_written
from pullback.diagnose.evidence.definitions import Scene, called, followed, mark_node, own_statements
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoParametersConsumed(Cause):
    """``net.parameters()`` is a generator: it gives its items once.

    After counting, printing or clipping by the same generator nothing is left for the optimizer. Keep a list:
    ``params = list(net.parameters())``; or call ``net.parameters()`` anew each time.
    """

    code = "PB622"
    title = "An optimizer was given a generator that had been gone through before."
    says = ("optimizer got an empty parameter list",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        node = parameters_written(case)
        if not isinstance(node, ast.Name | ast.Attribute) or case.site is None:
            return None
        thing: Any = case.site.evaluated(node)
        spent = isinstance(thing, GeneratorType) and thing.gi_frame is None
        if not spent and not isinstance(thing, filter | map | zip):
            return None
        name = case.text(node)
        scene = Scene.of(case.site, len(case.frames) - 1)
        steps = followed(case, scene, node)
        marks = [case.mark(say("{name} gives nothing any more", name=name))]
        edits: tuple[Edit, ...] = ()
        used: ast.stmt | None = None
        if steps:
            step = steps[0]
            marks.append(step.mark(say("{name} is a generator from here", name=name)))
            edits = (step.scene.source.replaced(step.value, f"list({step.text})"),)
            used = self._used(scene, name, step.statement, case.site.line)
        if used is not None:
            marks.append(mark_node(scene.source, used, say("it was gone through here"), scene.function))
        elif called(steps[0].value if steps else None) == "filter":
            return None
        return self.found(
            say("{name} is a generator: it gives its items once, and they were taken before.", name=name),
            marks,
            Fix(
                say("Keep the parameters in a list."),
                case.site.source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def _used(scene: Scene, name: str, begin: ast.stmt, end: int) -> ast.stmt | None:
        for statement in own_statements(scene.scope):
            if not begin.lineno < statement.lineno < end or statement is begin:
                continue
            names = (each for each in ast.walk(statement) if isinstance(each, ast.Name | ast.Attribute))
            if any(scene.source.text(each) == name for each in names):
                return statement
        return None

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        weights = net.parameters()
        size = sum(w.numel() for w in weights)
        optimizer = torch.optim.SGD(weights, lr=0.1)
        assert size
        assert optimizer

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        weights = list(net.parameters())
        size = sum(w.numel() for w in weights)
        optimizer = torch.optim.SGD(weights, lr=0.1)
        assert size
        assert optimizer
