"""PB603: requires_grad switched on after the forward pass."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inputs import reads_values, root_line, switched_on, unused_input
from pullback.diagnose.evidence.definitions import Scene, called, definitions, mark_node, own_statements
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class GradAfterForward(Cause):
    """``requires_grad`` was switched on after the output had been computed.

    What is needed for the gradient is recorded while the output is computed, and only for tensors that require grad at
    that time. Switching it on afterwards does not change a graph that is there already.

    Call ``x.requires_grad_()`` before the first operation with ``x``.
    """

    code = "PB603"
    title = "An input was made to require grad after the output had been computed from it."
    says = ("not have been used in the graph",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = unused_input(case)
        if found is None or found.tensor.grad_fn is not None or case.site is None:
            return None
        written = found.written
        inline = called(written) == "requires_grad_" and isinstance(written, ast.Call)
        if inline and isinstance(written, ast.Call) and isinstance(written.func, ast.Attribute):
            name = case.text(written.func.value)
            statement = None
        else:
            name = case.text(written) or case.name_of(found.tensor)
            statement = switched_on(case, name, root_line(case))
        used = self._recorded(case, found.tensor)
        if statement is None and not inline and used is None:
            return None
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        computed = definitions(case, case.root)
        if computed:
            marks.append(computed[0].mark(say("the output was computed here")))
        elif used is not None:
            marks.append(used)
        scene = Scene.of(case.site, len(case.frames) - 1)
        if statement is not None:
            marks.append(mark_node(scene.source, statement, say("{name} requires grad from here", name=name),
                                   scene.function))  # fmt: skip
        edits = self._edits(case, scene, name, statement, root_line(case))
        return self.found(
            say(
                "{name} did not require grad when the output was computed, so no path to it was recorded. Switching "
                "it on afterwards comes too late.", name=name,
            ),
            marks,
            Fix(
                say("Let {name} require grad before it is used.", name=name),
                f"{name}.requires_grad_()    # before the forward pass", edits, "high" if edits else "medium",
            ),
            tensors=[case.subject(found.tensor, "input", name)],
            useless=[say("allow_unused=True: the gradient is None then")],
        )  # fmt: skip

    @staticmethod
    def _recorded(case: Case, tensor: Tensor) -> Mark | None:
        """Where a recorded computation of the root read the tensor while it did not require grad."""
        if case.tape is None or not case.values:
            return None
        for call in case.tape.history(*case.values):
            if any(value.tensor() is tensor for value in call.outputs) or not reads_values(call, tensor):
                continue  # what switches it on: x.requires_grad_()
            for value in call.inputs:
                if value.tensor() is tensor and not value.requires_grad and call.spot is not None:
                    return call.spot.mark(say("it was used here, when it did not require grad"))
        return None

    @staticmethod
    def _edits(case: Case, scene: Scene, name: str, statement: ast.stmt | None, line: int) -> tuple[Edit, ...]:
        """The switch moved before the first statement that reads the name."""
        source = scene.source
        if not name or not line:
            return ()
        own = sorted(own_statements(scene.scope), key=lambda each: each.lineno)
        for each in own:
            reads = any(
                isinstance(node, ast.Name | ast.Attribute)
                and isinstance(node.ctx, ast.Load)
                and source.text(node) == name
                for node in ast.walk(each)
            )
            if reads and each.lineno <= line and not isinstance(each, ast.FunctionDef | ast.ClassDef):
                switch = source.inserted_before(
                    each, source.text(statement) if statement else f"{name}.requires_grad_()"
                )
                if statement is None:
                    return (switch,)
                return switch, Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, None)
        return ()

    @staticmethod
    def bad():
        import torch

        points = torch.rand(5, 2)
        net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        values = net(points)
        points.requires_grad = True
        slope = torch.autograd.grad(values.sum(), points)[0]
        assert slope.shape == (5, 2)

    @staticmethod
    def good():
        import torch

        points = torch.rand(5, 2)
        net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        points.requires_grad = True
        values = net(points)
        slope = torch.autograd.grad(values.sum(), points)[0]
        assert slope.shape == (5, 2)
