"""PB819: argnums name no argument."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, only_call, set_keyword, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class Argnums(Cause):
    """``argnums`` of a transform does not name positional arguments of this call.

    ``argnums`` is the number of a *positional* argument, counted from 0, or a tuple of such numbers: ``(0, 2)``. It is
    no name. What is passed by keyword, ``grad(f)(x=x)``, has no number and cannot be differentiated by: pass it by
    position. A tuple gives a tuple of gradients, even ``(0,)``; no number may stand in it twice.

    The first argument has the number 0. A dict of parameters is *one* argument; its gradient is a dict.
    """

    code = "PB819"
    title = "argnums of a transform does not name a positional argument of the call."
    says = (
        "Got argnum=",
        "argnums must be int or Tuple",
        "argnums must be non-empty",
        "argnums elements must be unique",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = transforms_in(case, *FUNC)
        if not found or case.site is None:
            return None
        transform = next((each for each in reversed(found) if "argnums" in each.local), found[-1])
        arguments = transform.local.get("args", transform.local.get("primals", ()))
        count = len(arguments) if isinstance(arguments, tuple) else 0
        edits: tuple[Edit, ...] = ()
        made = only_call(case.site, ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian"))
        names = transform.defined.parameters if transform.defined is not None else []
        argnums = transform.local.get("argnums")
        meant = names.index(argnums) if isinstance(argnums, str) and argnums in names else 0 if count == 1 else None
        if made is not None and meant is not None:
            edits = set_keyword(case.site, made, "argnums", str(meant), 1)
        return self.found(
            say(
                "argnums is {argnums}; positional arguments of {function}: {count}, numbered from 0.",
                argnums=repr(argnums), function=title_of(transform.defined), count=count,
            ),
            [case.mark(say("called here"))],
            Fix(
                say("Give the numbers of positional arguments, from 0."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        torch.func.jacrev(torch.sin, argnums=1)(torch.zeros(2))

    @staticmethod
    def good():
        import torch

        torch.func.jacrev(torch.sin, argnums=0)(torch.zeros(2))
