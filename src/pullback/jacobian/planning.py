"""Planning: what the strategies are told, the plan that follows, and the plans that worked before."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial

from pullback.data.space import Space
from pullback.jacobian.mixing import mixing
from pullback.jacobian.passes import Passes
from pullback.plan import Plan, choose
from pullback.strategies.base import Facts, Want

# Strategies whose bid follows from the shapes; that examples do not mix is verified at each point.
SAME_EVERYWHERE = {"rows", "columns", "blocks"}
# Strategies whose bid follows from the program, which is looked at again.
FOUND_AGAIN = {"staged"}


def facts_of(passes: Passes, want: Want, strategy: str = "auto", *, holomorphic: bool) -> Facts:
    """What the strategies are told about a linearization."""
    lin = passes.linearization
    return Facts(
        want,
        lin.rows,
        lin.columns,
        holomorphic,
        passes.no_forward,
        partial(mixing, passes),
        passes.structure_again if want == "matrix" and strategy == "auto" else passes.structure,
        lambda: passes.elsewhere,
        strategy,
        lin.problem.symmetric,
        lin.create_graph,
        passes.layers,
        passes.stages,
    )


def plan_for(passes: Passes, want: Want, strategy: str, *, holomorphic: bool) -> tuple[Facts, Plan]:
    """The bids of all strategies and the choice, before anything runs."""
    lin = passes.linearization
    facts = facts_of(passes, want, strategy, holomorphic=holomorphic)
    shape = (lin.outputs.size, lin.inputs.size)
    if not facts.rows.size or not facts.columns.size:
        plan = Plan(want, shape, {}, notes=["every derivative is zero: there is nothing to run"])
    else:
        plan = choose(facts, shape, strategy, passes.seconds)
    for note in (*_dead_outputs(passes), *lin.notes, *passes.notes):
        plan.note(note)
    return facts, plan


def planned_before(passes: Passes, want: Want, strategy: str, *, holomorphic: bool) -> tuple[Facts, Plan] | None:
    """The plan that worked before for this function and these shapes."""
    known: Plan | None = passes.verifier.recall(_plan_key(passes, want, strategy, holomorphic))
    if known is None or (known.chosen == "blocks" and not passes.verifier.active):
        return None
    if known.chosen in FOUND_AGAIN and isinstance(passes.stages(), str):
        return None
    if known.chosen not in SAME_EVERYWHERE | FOUND_AGAIN:
        passes.structure_again()
        if not passes.elsewhere:
            return None
    plan = replace(known, offers=dict(known.offers), route="", chunks=[], notes=[], before=True)
    for note in (*_dead_outputs(passes), *passes.linearization.notes, *passes.notes):
        plan.note(note)
    return facts_of(passes, want, strategy, holomorphic=holomorphic), plan


def remember(passes: Passes, plan: Plan, strategy: str, *, holomorphic: bool) -> None:
    """Remember a plan that worked, if its bids hold at other points too; what does not is verified there."""
    if plan.before or (plan.chosen == "blocks" and not passes.verifier.active):
        return
    if plan.chosen in SAME_EVERYWHERE | FOUND_AGAIN or _by_known_pattern(passes, plan):
        passes.verifier.learn(_plan_key(passes, plan.want, strategy, holomorphic), plan)
    elif plan.want == "matrix" and plan.chosen != "waist":
        passes.remember_structure()


def forget(passes: Passes, want: Want, strategy: str, *, holomorphic: bool) -> None:
    """Forget the plan and the structure that worked before, and do not here."""
    passes.verifier.learn(_plan_key(passes, want, strategy, holomorphic), None)
    passes.forget_structure()
    passes.forget_layers()


def rests_on_memory(passes: Passes, plan: Plan) -> bool:
    """Whether a strategy rests on what was found at another point."""
    return (plan.chosen == "outer" and passes.owners_known) or _by_known_pattern(passes, plan)


def _by_known_pattern(passes: Passes, plan: Plan) -> bool:
    return plan.want == "matrix" and passes.elsewhere and plan.chosen not in SAME_EVERYWHERE


def _plan_key(passes: Passes, want: str, strategy: str, holomorphic: bool) -> Hashable:
    lin = passes.linearization
    return "plan", want, strategy, holomorphic, lin.create_graph, lin.live_inputs, lin.live_outputs


def _dead_outputs(passes: Passes) -> list[str]:
    lin: Space = passes.linearization.outputs
    live = set(passes.linearization.live_outputs)
    return [
        f"{leaf.name} carries no graph ({str(leaf.dtype).removeprefix('torch.')}): its derivatives are zero"
        for index, leaf in enumerate(lin.leaves)
        if index not in live
    ]
