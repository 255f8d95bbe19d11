"""PBA140: a module's backward hook of the old kind."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.warned import calls_at, told
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.language import say


class OldHook(Fault):
    """``register_backward_hook`` saw the gradients of the last operation of a module, not those of the module.

    The old hook is attached to the last node that the module made. If ``forward`` makes several, ``grad_input`` has
    the gradients by the inputs of that last operation; those by the inputs of the module are missing or wrong.

    Use ``register_full_backward_hook``, which has the same arguments and is right for any module. Reading fewer
    entries of ``grad_input`` does not make them right.
    """

    code = "PBA140"
    title = "An old backward hook of a module saw only the last operation of it."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "non-full backward hook" not in message.lower():
            return
        marks, edits = [], []
        for source, call in calls_at(mark, "register_backward_hook"):
            if isinstance(call.func, ast.Attribute):
                place = mark.place._replace(line=call.lineno, function="")
                marks.append(Mark.at(place, say("registered here"), source.span(call)))
                text = f"{source.text(call.func.value)}.register_full_backward_hook"
                edits.append(source.replaced(call.func, text))
        own: tuple[Edit, ...] = tuple(edits)
        audit.report(
            self.found(
                say("The module makes several nodes; the hook was called with the gradients of the last one."),
                [*marks, told(mark, say("it was called for this"))],
                Fix(
                    say("Register a full backward hook."),
                    "module.register_full_backward_hook(hook)",
                    own,
                    "high" if own else "medium",
                ),
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

        def hook(module, grad_input, grad_output):
            return None

        net.register_backward_hook(hook)
        net(torch.randn(2, 4, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

        def hook(module, grad_input, grad_output):
            return None

        net.register_full_backward_hook(hook)
        net(torch.randn(2, 4, requires_grad=True)).sum().backward()
