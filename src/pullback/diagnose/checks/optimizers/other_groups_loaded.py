"""PB635: the state of an optimizer of another model was loaded."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class OtherGroupsLoaded(Cause):
    """The state that an optimizer was to load is of one with other parameters.

    A state belongs to parameters by their order and number, not by name: the groups have to be the same ones,
    with the same numbers of parameters, in the same order. They differ if layers were added or frozen since, or
    if the parameters were filtered or grouped otherwise. Build model and optimizer as they were when the state
    was saved, load, and then change them (``optimizer.add_param_group``); or start with a new state.
    """

    code = "PB635"
    title = "The state that an optimizer was to load has other parameter groups."
    says = (
        "loaded state dict contains a parameter group that doesn't match",
        "loaded state dict has a different number of parameter groups",
    )
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("optim/optimizer.py", "load_state_dict")
        if local is None:
            return None
        own = [len(group["params"]) for group in local["self"].param_groups]
        given = [len(group["params"]) for group in local["state_dict"]["param_groups"]]
        return self.found(
            say(
                "The optimizer has groups of {own} parameters, the state of {given}.",
                own=", ".join(map(str, own)),
                given=", ".join(map(str, given)),
            ),
            [case.mark(say("loaded here"))],
            Fix(
                say(
                    "Make the optimizer with the parameters and groups that it had when the state "
                    "was saved; change it after."
                )
            ),
            useless=[say("strict=False: an optimizer has no such option.")],
        )

    @staticmethod
    def bad():
        import torch

        small, large = torch.nn.Linear(2, 1), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        state = torch.optim.Adam(small.parameters()).state_dict()
        torch.optim.Adam(large.parameters()).load_state_dict(state)

    @staticmethod
    def good():
        import torch

        small, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        state = torch.optim.Adam(small.parameters()).state_dict()
        torch.optim.Adam(other.parameters()).load_state_dict(state)
