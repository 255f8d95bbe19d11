"""The plan: every strategy's bid, the choice, and what was done.

The chooser stands above the choices: strategies bid without knowing of each other, and the cheapest wins. A pass
in forward mode is not assumed to cost what a reverse pass costs; where that would decide, both are measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO

from pullback.data.problem import Side
from pullback.errors import StrategyError, ValueMismatch
from pullback.strategies.base import STRATEGIES, Bid, Facts, Refusal
from pullback.words import human

# The two sides are timed when their passes differ by less than this factor ...
CLOSE_CALL = 4
# ... and there are enough of them for the timing to be a small part of the work.
WORTH_TIMING = 256
# Until they are timed, a forward pass counts double: it runs the function again.
UNTIMED: dict[Side, float] = {"reverse": 1.0, "forward": 2.0}
# A plan prints no wider than this, or than the terminal.
WIDEST = 100


@dataclass
class Plan:
    """How a Jacobian is built, and why so.

    Attributes:
        want: What is built: ``"matrix"``, ``"blocks"`` or ``"sparse"``.
        shape: The shape (m, n) of the Jacobian.
        offers: Each strategy's bid or refusal, by name.
        order: The names of the strategies that bid, the cheapest first.
        chosen: The strategy that was taken, or will be.
        seconds: The measured seconds for one pass on each side, where it was measured.
        route: How the passes were run; empty before that.
        chunks: How many passes each chunk had.
        checked: How the result was verified.
        notes: What was substituted on the way, and what else a reader should know.
        before: Whether the bids are those of another point, for the same function and shapes.
    """

    want: str
    shape: tuple[int, int]
    offers: dict[str, Bid | Refusal]
    order: list[str] = field(default_factory=list)
    chosen: str = ""
    seconds: dict[Side, float] = field(default_factory=dict)
    route: str = ""
    chunks: list[int] = field(default_factory=list)
    checked: str = ""
    notes: list[str] = field(default_factory=list)
    before: bool = False

    @property
    def passes(self) -> int:
        """The number of passes that the chosen strategy takes."""
        offer = self.offers.get(self.chosen)
        return offer.passes if isinstance(offer, Bid) else 0

    def bid(self, name: str) -> Bid:
        """The bid of a strategy that made one."""
        offer = self.offers[name]
        assert isinstance(offer, Bid)
        return offer

    def by_cost(self) -> list[str]:
        """The strategies that bid, the cheapest first: by seconds where they were measured, else by passes."""
        weight = self.seconds or UNTIMED
        names = [name for name, offer in self.offers.items() if isinstance(offer, Bid)]

        def cost(name: str) -> float:
            offer = self.bid(name)
            return offer.share * sum((stop - start) * weight[side] for side, start, stop in offer.parts)

        return sorted(names, key=cost)

    def close_call(self) -> bool:
        """Whether the cost of a pass on each side decides, and there are enough passes to time a few."""
        fewest: dict[Side, int] = {}
        for name in self.by_cost():
            fewest.setdefault(self.bid(name).side, self.bid(name).passes)
        few, many = min(fewest.values(), default=0), max(fewest.values(), default=0)
        return len(fewest) == 2 and few >= WORTH_TIMING and many <= CLOSE_CALL * few

    def settle(self, facts: Facts) -> None:
        """Ask for firm numbers of passes, until the cheapest bid is firm."""
        while order := self.by_cost():
            offer = self.bid(order[0])
            if offer.firm:
                return
            self.offers[order[0]] = STRATEGIES.all()[order[0]].settle(facts, offer)

    def forward_works(self, facts: Facts) -> bool:
        """Whether forward mode works and is right here; if not, the bids that count on it become refusals."""
        reason = facts.no_forward()
        if reason:
            for name in self.by_cost():
                if any(side == "forward" for side, _, _ in self.bid(name).parts):
                    self.offers[name] = Refusal(reason)
        return not reason

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415  only a plan that is printed needs it

        width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
        console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
        console.print(self._table())
        for line in self._lines():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines())

    def __repr__(self) -> str:
        return f"Plan({self.chosen or 'nothing to do'}, {self.passes} passes, {self.shape[0]} x {self.shape[1]})"

    def _table(self) -> object:
        from rich.table import Table  # noqa: PLC0415

        table = Table(title=f"Jacobian {self.shape[0]} x {self.shape[1]}, as {self.want}", title_justify="left")
        for header in ("", "strategy", "side", "passes", "bytes", "why"):
            table.add_column(header, justify="right" if header in {"passes", "bytes"} else "left")
        for name, offer in self.offers.items():
            mark = "→" if name == self.chosen else ""
            if isinstance(offer, Bid):
                size = human(offer.bytes)
                side = " + ".join(dict.fromkeys(side for side, _, _ in offer.parts))
                table.add_row(mark, name, side, f"{'' if offer.firm else '≥ '}{offer.passes:,}", size, offer.why)
            else:
                table.add_row(mark, name, "", "", "", f"refused: {offer.why}")
        return table

    def _lines(self) -> list[str]:
        lines = []
        if self.seconds:
            each = ", ".join(f"{side} {seconds * 1e6:.0f} µs" for side, seconds in self.seconds.items())
            lines.append(f"measured, for one pass of a batch: {each}")
        if self.route:
            lines.append(f"ran: {self.route}, in {_chunks(self.chunks)}")
        if self.checked:
            lines.append(f"verified: {self.checked}")
        lines.extend(f"note: {note}" for note in self.notes)
        return lines


def choose(facts: Facts, shape: tuple[int, int], wanted: str, seconds: Callable[[Side], float]) -> Plan:
    """Collect the bids of all strategies and put the cheapest first.

    Args:
        facts: What is known of the Jacobian.
        shape: Its shape, for the plan's reader.
        wanted: A strategy's name, or ``"auto"``.
        seconds: Measures one pass of a batch on a side; called only where it decides.

    Raises:
        StrategyError: The strategy that was asked for, or every strategy, refuses.
    """
    able = {name: each for name, each in STRATEGIES.all().items() if facts.want in each.gives}
    plan = Plan(facts.want, shape, {name: each.bid(facts) for name, each in able.items()})
    if wanted != "auto" and isinstance(plan.offers.get(wanted), Bid) and not plan.bid(wanted).firm:
        plan.offers[wanted] = able[wanted].settle(facts, plan.bid(wanted))
    if wanted == "auto":
        plan.settle(facts)
        if plan.close_call() and plan.forward_works(facts):
            plan.seconds = {side: seconds(side) for side in ("forward", "reverse")}
            plan.settle(facts)
        order = plan.by_cost()
    else:
        order = sorted(plan.by_cost(), key=lambda name: name != wanted)
    if order and plan.bid(order[0]).side == "forward" and not plan.forward_works(facts):
        order = [name for name in order if isinstance(plan.offers[name], Bid)]
    if wanted != "auto" and (not order or order[0] != wanted):
        raise _cannot(plan, wanted, order)
    plan.order = order
    plan.chosen = order[0] if order else ""
    return plan


def check_name(name: str) -> None:
    """Refuse a name that no strategy has.

    Raises:
        ValueMismatch: No strategy is called that.
    """
    if name == "auto":
        return
    known = ["auto", *STRATEGIES.all()]
    if name not in known:
        raise ValueMismatch(
            "there is no such strategy", got=repr(name), fix=f"strategy= one of {', '.join(map(repr, known))}"
        )


def _cannot(plan: Plan, wanted: str, order: list[str]) -> StrategyError:
    offer = plan.offers.get(wanted)
    return StrategyError(
        f"strategy {wanted!r} cannot build this Jacobian",
        got=offer.why if offer is not None else f"it does not give {plan.want}",
        fix="strategy='auto' takes the cheapest that can" + (f", now {order[0]!r}" if order else ""),
    )


def _chunks(sizes: list[int]) -> str:
    if max(sizes, default=0) == 1:
        return f"{len(sizes)} passes"
    if len(sizes) == 1:
        return f"one chunk of {sizes[0]}"
    return f"{len(sizes)} chunks of up to {max(sizes, default=0)}"
