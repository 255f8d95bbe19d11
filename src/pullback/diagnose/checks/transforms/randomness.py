"""PB812: a random operation under vmap without a word on how samples share it."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, only_call, set_keyword, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class Randomness(Cause):
    """A random operation (``randn``, ``dropout``, ``bernoulli``) ran under ``vmap``, which was not told what it means.

    Do all samples share one draw, or does each have its own? ``vmap`` asks for an answer:

    * ``vmap(f, randomness="different")``: each sample draws for itself, as in a loop. Dropout means this.
    * ``vmap(f, randomness="same")``: one draw for all, such as one noise vector for a whole batch.

    Or draw outside and pass the numbers in. A network with dropout that is only evaluated wants ``net.eval()``.
    A seed does not answer the question. ``torch.empty(3).normal_()`` cannot be made different: take ``torch.randn``.
    """

    code = "PB812"
    title = "A random operation ran under vmap, which was not told whether samples share the draw."
    says = ("called random operation while in randomness error mode",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = [each for each in transforms_in(case, *FUNC) if each.name == "vmap"]
        if not transforms or case.site is None:
            return None
        outer = next((each for each in reversed(transforms) if each.local.get("randomness") == "error"), transforms[-1])
        caller = outer.caller
        marks = [case.mark(say("this draws random numbers"))]
        edits: tuple[Edit, ...] = ()
        code = 'torch.vmap(f, randomness="different")'
        if caller is not None:
            made = only_call(caller, ("vmap", "jacfwd"))
            if made is not None:
                edits = set_keyword(caller, made, "randomness", '"different"')
                code = "\n".join(each.text.strip() for each in edits if each.text)
            if caller is not case.site:
                marks.append(caller.mark(say("vmap runs the function here")))
        return self.found(
            say(
                "{expression} draws random numbers in a function under vmap. It is not said whether every sample has "
                "its own draw or all share one.",
                expression=case.site.text,
            ),
            marks,
            Fix(
                say('Say randomness="different" for a draw of its own for each sample, "same" for one for all.'),
                code, edits, "high" if edits else "medium",
            ),
            useless=[say("torch.manual_seed(...): a seed does not say who shares the draw.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def noisy(row):
            return torch.nn.functional.dropout(row, 0.5).sum()

        torch.vmap(noisy)(torch.ones(4, 3))

    @staticmethod
    def good():
        import torch

        def noisy(row):
            return torch.nn.functional.dropout(row, 0.5).sum()

        torch.vmap(noisy, randomness="different")(torch.ones(4, 3))
