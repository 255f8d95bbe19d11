"""PB740: a module's backward hook computes with a gradient that is None."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import asked_marks
from pullback.diagnose.evidence.functions.hooks import hook_frame, method_of_hook, module_hook, registered
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class MissingGradient(Cause):
    """A backward hook of a module computed with None: the input has no gradient.

    ``grad_input`` has an entry for each positional input of the module, and it is ``None`` for inputs that do not
    require grad: the data at the first layer, an index tensor, a mask. Test for ``None``, or register the hook on
    modules whose input comes from another layer.
    """

    code = "PB740"
    title = "A module's backward hook computes with None, the gradient of an input that does not require grad."
    says = ("NoneType",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        running, frame, site = module_hook(case), hook_frame(case), case.site
        if running is None or frame is None or site is None or site.place != frame.place:
            return None
        method = method_of_hook(running[1])
        names = method.names if method is not None else []
        empty = [
            name
            for name in names
            if isinstance(value := frame.local.get(name), tuple) and any(each is None for each in value)
        ]
        if not empty or method is None:
            return None
        kind = type(running[0]).__name__
        found = registered(case, {"register_full_backward_hook", "register_full_backward_pre_hook"})
        mine = [each for each in found if each.hook is not None and each.hook.node is method.node]
        marks = [case.mark(say("{name} holds None", name=empty[0]))]
        marks += [each.mark(say("the hook is registered here")) for each in mine[:2]] + asked_marks(case)
        return self.found(
            say(
                "{name} of this {module} has a None: that input does not require grad, so it has no gradient.",
                name=empty[0],
                module=kind,
            ),
            marks,
            Fix(say("Test for None before computing with it."), f"if {empty[0]}[0] is not None: ...", (), "medium"),
        )

    @staticmethod
    def bad():
        import warnings

        import torch

        warnings.simplefilter("ignore")
        norms = {}
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

        def watch(module, grad_input, grad_output):
            norms[module] = grad_input[0].norm().item()

        for layer in net:
            layer.register_full_backward_hook(watch)
        net(torch.randn(5, 3)).sum().backward()

    @staticmethod
    def good():
        import torch

        norms = {}
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

        def watch(module, grad_input, grad_output):
            norms[module] = grad_input[0].norm().item()

        for layer in list(net)[1:]:
            layer.register_full_backward_hook(watch)
        net(torch.randn(5, 3)).sum().backward()
