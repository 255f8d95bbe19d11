"""Several outputs of which only one is used: the others get no gradient, None or zeros."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, largest_gap, name_of, said, same


@behaviour("some outputs unused")
def some_outputs(subject: Subject) -> Iterator[Problem]:
    """The gradient of one output alone equals that of all with zeros for the others."""
    trial = Trial.of(subject)
    custom = sorted({name_of(node) for node in trial.custom()})
    if len(trial.outputs) < 2 or not custom:
        return
    seeds = trial.seeds(subject)
    for position, output in enumerate(trial.outputs):
        zeros = [seed if i == position else torch.zeros_like(seed) for i, seed in enumerate(seeds)]
        reference = trial.pull(zeros)
        alone = Trial(trial.leaves, trial.given, (output,))
        try:
            found = alone.pull([seeds[position]])
        except Exception as error:  # whatever a backward raises on None
            yield Problem(
                "fails where an output is not used",
                f"{', '.join(custom)}: backward fails if only output {position} is used: {said(error)}",
                "with ctx.set_materialize_grads(False) an unused output's gradient is None: test for it",
            )
            return
        if not same(reference, found):
            yield Problem(
                "wrong where an output is not used",
                f"{', '.join(custom)}: if only output {position} is used, the gradient differs by "
                f"{largest_gap(reference, found):.3g} from that with zeros for the others",
                "with ctx.set_materialize_grads(False) an unused output's gradient is None: it counts as zeros",
            )
            return
