"""PB731: a hook that returns a gradient of another shape."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import Method
from pullback.diagnose.evidence.functions.hooks import MODULE, TENSOR, Registered, named_hook, registered
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix, Mark
from pullback.language import say

SHRINKS = re.compile(
    r"\.(sum|mean|norm|max|min|amax|amin|std|var|flatten|view|reshape|squeeze|unsqueeze|t|transpose|permute|prod|argmax|expand"
    r"|repeat|T)\b|torch\.(sum|mean|norm|stack|cat)|\["
)


class ChangedGradient(Cause):
    """A hook returned a gradient of another shape than it was given.

    What a hook returns replaces the gradient; ``None`` leaves it as it is. So a hook that only looks, logs or collects
    must not return anything, which a lambda easily does: ``lambda g: g.norm()`` replaces the gradient by its norm. A
    hook that changes the gradient returns a tensor of the same shape, dtype and device: ``lambda g: g.clamp(-1, 1)``,
    ``g.mean().expand_as(g)``.
    """

    code = "PB731"
    title = "A hook returned a gradient of another shape than it was given."
    says = ("has changed the size of value",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        hooks, confidence = candidates(case, SHRINKS)
        name = named_hook(case)
        marks = [case.mark(say("the backward pass failed here"))]
        marks += marked(hooks, say("what this returns replaces the gradient"))
        edits, sure = _edits(hooks)
        return self.found(
            say(
                "The hook {name} returned a tensor of another shape than the gradient that it was given. What a hook "
                "returns takes the place of the gradient.",
                name=name,
            ),
            marks,
            Fix(
                say("Return nothing (None) to leave the gradient as it is, or a tensor of its shape."),
                hooks[0].source.code(*edits) if edits else "return None",
                edits,
                "high" if sure else "medium",
            ),
            confidence=confidence,
            apart="" if confidence == "high" else say("Which hook of this name it was, torch does not say."),
        )

    @staticmethod
    def bad():
        import torch

        def report(grad):
            print("gradient", grad.shape)
            return grad.mean(0)

        w = torch.randn(4, 3, requires_grad=True)
        hidden = torch.tanh(w)
        hidden.register_hook(report)
        (hidden**2).sum().backward()

    @staticmethod
    def good():
        import torch

        def report(grad):
            print("gradient", grad.shape)

        w = torch.randn(4, 3, requires_grad=True)
        hidden = torch.tanh(w)
        hidden.register_hook(report)
        (hidden**2).sum().backward()


def candidates(case: Case, pattern: re.Pattern[str] | None) -> tuple[list[Registered], Confidence]:
    """The registered hooks that can be meant, by their name and by what they return."""
    name = named_hook(case)
    found = registered(case, {*TENSOR, *MODULE, "register_prehook"})
    found = [each for each in found if each.name in (name, "?") or (name == "hook" and each.method in MODULE)]
    if len(found) > 1 and pattern is not None:
        fitting = [each for each in found if each.hook is not None and _returns(each.hook, pattern)]
        found = fitting or found
    return found, "high" if len(found) == 1 else "medium"


def marked(hooks: list[Registered], what: str) -> list[Mark]:
    """The lines that register hooks, and what each returns."""
    marks: list[Mark] = []
    for each in hooks[:3]:
        marks.append(each.mark(say("the hook is registered here")))
        if each.hook is not None:
            marks += [each.hook.mark(value, what) for value in each.hook.returns]
    return marks


def _returns(hook: Method, pattern: re.Pattern[str]) -> bool:
    for value in hook.returns:
        written = hook.assigned(getattr(value, "id", ""))
        if pattern.search(hook.text(value)) or (written is not None and pattern.search(hook.text(written.value))):
            return True
    return False


def _edits(hooks: list[Registered]) -> tuple[tuple[Edit, ...], bool]:
    """A single number for the whole gradient is spread over it; other values are not guessed at."""
    hook = hooks[0].hook if len(hooks) == 1 else None
    if hook is None or not hook.own or len(hook.returns) != 1 or not hook.first:
        return (), False
    value, gradient = hook.returns[0], hook.first
    text = hook.text(value)
    if not re.search(r"\.(sum|mean|norm|max|min|prod|std|var)\(\)$", text):
        return (), False
    return hook.rewrite().replace(value, f"{text}.expand_as({gradient})").edits(), False
