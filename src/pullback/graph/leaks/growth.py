"""Whether a number that is looked at now and then grows without end."""

from __future__ import annotations

from dataclasses import dataclass, field

# A longer history is thinned: every second look is forgotten.
LONGEST = 64
# It takes so many rises to speak of growth.
RISES = 4


@dataclass
class Growth:
    """The history of a number since it last fell, and the highest it was before.

    What is cleared now and then grows in between: it grows without end only if it goes well beyond where it was
    cleared before. What levels off grows at first: it has to grow as fast in the last third as it did before, and to
    have risen not long ago.

    Attributes:
        points: Steps and the number then; thinned where there are many.
        rises: How often it was higher than at the look before.
        peak: The highest that it fell from.
        last_rise: The step of the last rise.
        longest_wait: The most steps from one rise to the next.
    """

    points: list[tuple[int, int]] = field(default_factory=list)
    rises: int = 0
    peak: int = 0
    last_rise: int = 0
    longest_wait: int = 0

    def add(self, tick: int, value: int, *, at_limit: bool = False) -> None:
        """Note the number at a step; at the limit of what is counted it says nothing more."""
        if self.points:
            _, last = self.points[-1]
            if at_limit and self.rises >= RISES:
                return
            if tick == self.points[-1][0] and value >= last:
                return
            if value < last:
                self.peak = max(self.peak, last)
                self.points.clear()
                self.rises = self.longest_wait = 0
            elif value > last:
                if self.rises:
                    self.longest_wait = max(self.longest_wait, tick - self.last_rise)
                self.rises += 1
                self.last_rise = tick
        self.points.append((tick, value))
        if len(self.points) > LONGEST:
            self.points = [self.points[0], *self.points[-1:0:-2][::-1]]

    @property
    def is_steady(self) -> bool:
        """Whether it grows without end, as far as can be told."""
        if self.rises < RISES:
            return False
        (first, low), (last, high) = self.points[0], self.points[-1]
        middle, between = max(point for point in self.points if point[0] <= first + 2 * (last - first) / 3)
        before = (between - low) / max(middle - first, 1)
        after = (high - between) / max(last - middle, 1)
        return (
            after > 0
            and after >= before / 2
            and last - self.last_rise <= 2 * self.longest_wait
            and high > 2 * self.peak
        )

    @property
    def rate(self) -> float:
        """By how much it grew at a step, on average over the history."""
        if len(self.points) < 2:
            return 0.0
        (first, low), (last, high) = self.points[0], self.points[-1]
        return (high - low) / max(last - first, 1)
