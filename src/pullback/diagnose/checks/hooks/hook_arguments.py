"""PB739: a hook that does not take the arguments that it is called with."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.hooks import MODULE, method_of_hook, module_hook, registered
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

TAKES = {
    "register_hook": "grad",
    "register_post_accumulate_grad_hook": "tensor",
    "register_full_backward_hook": "module, grad_input, grad_output",
    "register_backward_hook": "module, grad_input, grad_output",
    "register_full_backward_pre_hook": "module, grad_output",
    "register_prehook": "grad_outputs",
}


class HookArguments(Cause):
    """A hook does not take the arguments that torch calls it with.

    | registered with | called with |
    |---|---|
    | ``tensor.register_hook`` | the gradient |
    | ``tensor.register_post_accumulate_grad_hook`` | the tensor |
    | ``module.register_full_backward_hook`` | module, grad_input, grad_output |
    | ``module.register_full_backward_pre_hook`` | module, grad_output |
    | ``node.register_hook`` (a ``grad_fn``) | grad_inputs, grad_outputs |
    | ``node.register_prehook`` | grad_outputs |

    Further values are bound with ``functools.partial`` or a closure. A method of a class takes ``self`` before.
    """

    code = "PB739"
    title = "A hook does not take the arguments that it is called with."
    says = ("positional argument",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        last = None
        for frame, _, _ in frames_of(case.error.__traceback__):
            last = frame
        if last is None:
            return None
        file, name = last.f_code.co_filename.replace("\\", "/"), last.f_code.co_name
        if name != "_engine_run_backward" and not file.endswith("torch/utils/hooks.py"):
            return None
        said = re.match(r"(?:[\w.<>]*\.)?(\w+|<lambda>)\(\)", case.message)
        running = module_hook(case)
        method = method_of_hook(running[1]) if running is not None else None
        kinds = (
            {*MODULE}
            if running is not None
            else {"register_hook", "register_post_accumulate_grad_hook", "register_prehook"}
        )
        found = [each for each in registered(case, kinds) if said is None or each.name in (said[1], "partial")]
        if method is not None:
            found = [each for each in found if each.hook is not None and each.hook.node is method.node] or found
        if not found:
            return None
        one = found[0]
        method = method or one.hook
        kind = one.call.func.attr  # type: ignore[attr-defined]
        takes = "grad_inputs, grad_outputs" if kind == "register_hook" and "grad_fn" in one.owner else TAKES[kind]
        marks = [case.mark(say("the backward pass failed here"))]
        marks += [each.mark(say("the hook is registered here")) for each in found[:3]]
        if method is not None:
            marks.append(method.mark(method.node, say("it is called with ({takes})", takes=takes)))
        edits: tuple[Edit, ...] = ()
        names = [each for each in (method.names if method else []) if each != "self"]
        wanted = takes.split(", ")
        own = f"self, {takes}" if method is not None and method.names[:1] == ["self"] else takes
        missing = len(wanted) - len(names)
        if method is not None and method.own and names and missing == 1 and running is not None:
            first = method.arguments[method.names.index(names[0])]
            edits = method.rewrite().replace(first, f"module, {method.text(first)}").edits()
        return self.found(
            say(
                "The hook {hook} is called with ({takes}), but takes ({names}).",
                hook=one.name,
                takes=takes,
                names=", ".join(names),
            ),
            marks,
            Fix(
                say("Take just these arguments."),
                method.source.code(*edits) if edits and method else f"def {one.name}({own}):",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if len(found) == 1 else "medium",
        )

    @staticmethod
    def bad():
        import torch

        def note(grad_input, grad_output):
            print(grad_output[0].norm())

        net = torch.nn.Linear(3, 2)
        net.register_full_backward_hook(note)
        net(torch.randn(4, 3, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch

        def note(module, grad_input, grad_output):
            print(grad_output[0].norm())

        net = torch.nn.Linear(3, 2)
        net.register_full_backward_hook(note)
        net(torch.randn(4, 3, requires_grad=True)).sum().backward()
