"""Where autograd's nodes were made, by their sequence numbers: a table for each thread, of plain integers.

A thread numbers the nodes it makes 0, 1, 2, ..., and several threads use the same numbers. A number is looked up among
all threads; where more than one can have made it, nothing is known.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn

from pullback.graph.values import Place

# A table longer than this loses its older half.
ENTRIES = 1 << 20
# So many threads that have ended keep their tables.
ENDED_THREADS = 64
# A place is the number of a function's file and name, and a line below this.
LINE_BITS = 24
NOWHERE = 0
# So many origins are kept once they were asked for.
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module: the module, if it is still there, and a number that no other call of its thread has."""

    module: weakref.ref[nn.Module] = field(hash=False)  # a reference to what is gone has no hash
    number: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node was made: the user's line, and the module calls inside which it was, outermost first."""

    place: Place
    calls: tuple[Call, ...]


Module = weakref.ref[nn.Module]


class _Columns(NamedTuple):
    """What a table holds, all of it replaced at once, for other threads read it.

    Attributes:
        stops: Row ``i`` holds the numbers from ``stops[i - 1]`` to below ``stops[i]``.
        places: Where they were made.
        calls: The innermost call of a module around them, or 0.
        first: The number of the first call in the two columns below.
        parents: The call around each call, or 0.
        modules: What was called.
        older: The same of earlier calls that are around later ones.
    """

    stops: array[int]
    places: array[int]
    calls: array[int]
    first: int
    parents: array[int]
    modules: list[Module]
    older: dict[int, tuple[int, Module]]

    def call(self, number: int) -> tuple[int, Module]:
        """The call around a call, and the module of that call."""
        if number < self.first:
            return self.older[number]
        return self.parents[number - self.first], self.modules[number - self.first]

    def path(self, number: int) -> tuple[Call, ...]:
        """A call and those around it, outermost first."""
        path: list[Call] = []
        while number:
            parent, module = self.call(number)
            path.append(Call(module, number))
            number = parent
        return tuple(reversed(path))

    def younger(self) -> _Columns:
        """The same, the older half made one row of which nothing is known."""
        half = len(self.stops) // 2
        stops, places, calls = (column[half:] for column in self[:3])
        places[0], calls[0] = NOWHERE, 0
        newest = self.first + len(self.parents) - 1  # the calls that are open now are around this one, or it itself
        first = max(min((call for call in calls if call), default=newest + 1), self.first)
        kept = first - self.first
        around = {newest, *calls, *self.parents[kept:]}
        older = {}
        for number in around:
            while number and number < first and number not in older:
                older[number] = self.call(number)
                number = older[number][0]
        return _Columns(stops, places, calls, first, self.parents[kept:], self.modules[kept:], older)


class Table:
    """Where one thread made its nodes. What came before the first row was made by this thread too, unseen.

    Attributes:
        thread: The thread.
        end: The first number that is not in it.
        seen: How many nodes it was told of.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        self.thread = weakref.ref(threading.current_thread())
        self.seen = 0
        self.end = 0
        self._entries = entries
        self._columns = _Columns(array("q"), array("q"), array("q"), 1, array("q"), [], {})
        self._functions: dict[tuple[str, str], int] = {}
        self._names: list[tuple[str, str]] = [("", "")]
        self._origins: dict[tuple[int, int], Origin] = {}  # nodes of one line and call share theirs

    def __len__(self) -> int:
        return len(self._columns.stops)

    def function(self, file: str, name: str) -> int:
        """What is added to a line of this function to make a place of it."""
        key = (file, name)
        if (found := self._functions.get(key)) is None:
            found = self._functions[key] = len(self._names)
            self._names.append(key)
        return found << LINE_BITS

    def call(self, around: int, module: Module) -> int:
        """A number for a call of a module inside another call, or inside none, which is 0."""
        columns = self._columns
        columns.modules.append(module)
        columns.parents.append(around)
        return columns.first + len(columns.parents) - 1

    def skip(self, stop: int) -> None:
        """The numbers below ``stop`` that are in no row were made where nobody looked."""
        if stop > self.end:
            self.seen -= stop - self.end
            self.note(stop, NOWHERE, 0)

    def note(self, stop: int, place: int, call: int) -> None:
        """The numbers below ``stop`` that are in no row were made at a place, inside a call of a module or none."""
        columns = self._columns
        columns.places.append(place)
        columns.calls.append(call)
        columns.stops.append(stop)  # last: whoever finds a stop finds the rest
        self.seen += stop - self.end
        self.end = stop
        if len(columns.stops) > self._entries:
            self._columns = columns.younger()

    def origin(self, sequence: int) -> Origin | None:
        """Where the node with this number was made; None where that is not known."""
        columns = self._columns
        row = bisect_right(columns.stops, sequence)
        if row == len(columns.stops) or (place := columns.places[row]) == NOWHERE:
            return None
        key = (place, columns.calls[row])
        if key not in self._origins:
            if len(self._origins) >= REMEMBERED:
                self._origins = {}
            file, name = self._names[place >> LINE_BITS]
            self._origins[key] = Origin(Place(file, place & ((1 << LINE_BITS) - 1), name), columns.path(key[1]))
        return self._origins[key]


class _Tables:
    """The tables of all threads.

    Attributes:
        forgotten: Below this, numbers were in tables that are gone.
    """

    def __init__(self) -> None:
        self.all: list[Table] = []
        self.forgotten = 0
        self.lock = threading.Lock()

    def ended(self) -> Iterator[Table]:
        for table in self.all:
            thread = table.thread()
            if thread is None or not thread.is_alive():
                yield table


_TABLES = _Tables()


def table_of_this_thread() -> Table:
    """A new table, in which numbers are looked up; the oldest of threads that have ended give way if they are many."""
    table = Table()
    with _TABLES.lock:
        for old in list(_TABLES.ended())[:-ENDED_THREADS]:
            _TABLES.all.remove(old)
            _TABLES.forgotten = max(_TABLES.forgotten, old.end)
        _TABLES.all = [*_TABLES.all, table]
    return table


def known_origin(sequence: int) -> Origin | None:
    """Where the node with this number was made, if just one thread can have made it, and its line was seen."""
    made_by = [table for table in _TABLES.all if 0 <= sequence < table.end]
    if len(made_by) != 1 or sequence < _TABLES.forgotten:
        return None
    return made_by[0].origin(sequence)
