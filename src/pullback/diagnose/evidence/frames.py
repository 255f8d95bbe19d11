"""The frames of a failed program: which are the user's, which expression each was at, and what its names held."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from pullback.diagnose.evidence.source import Scope, Source, source_of
from pullback.diagnose.values import Mark
from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

Bounds = tuple[int, int, int, int]


def bounds_at(code: CodeType, instruction: int) -> Bounds | None:
    """Line, column, end line and end column (in bytes) of what an instruction is compiled from."""
    found = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    if found is None or None in found:
        return None
    line, end_line, column, end_column = found
    return line, column, end_line, end_column  # type: ignore[return-value]


class Spot:
    """A point in the user's source where the program was: a code object and an instruction of it.

    Attributes:
        code: The code.
        instruction: The offset of the instruction.
        line: Its line.
    """

    __slots__ = ("code", "instruction", "line")

    def __init__(self, code: CodeType, instruction: int, line: int) -> None:
        self.code = code
        self.instruction = instruction
        self.line = line

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.code.co_filename

    @property
    def place(self) -> Place:
        """File, line and function."""
        return Place(self.file, self.line, self.code.co_qualname.rpartition("<locals>.")[2])

    @property
    def source(self) -> Source:
        """The file, parsed."""
        return source_of(self.file)

    @property
    def node(self) -> ast.expr | None:
        """The expression that ran: of ``(a + b).backward()``, the whole; of a plain statement, its value."""
        bounds = bounds_at(self.code, self.instruction)
        return self.source.expression_at(*bounds) if bounds else None

    @property
    def statement(self) -> ast.stmt | None:
        """The statement that ran."""
        node = self.node
        if node is not None:
            return self.source.statement(node)
        bounds = bounds_at(self.code, self.instruction)
        exact = self.source.statement_of(*bounds) if bounds else None
        return exact if exact is not None else self.source.statement_at(self.line)

    @property
    def scope(self) -> Scope:
        """The function that ran, or the module; of a comprehension, the function around it."""
        name, node = self.code.co_name, self.node
        if name.startswith("<") and name not in {"<module>", "<lambda>"} and node is not None:
            return self.source.scope(node)
        return self.source.function_at(self.line, name)

    @property
    def text(self) -> str:
        """The expression that ran, as it is written."""
        node = self.node
        return self.source.text(node) if node is not None else self.place.text

    def mark(self, what: str) -> Mark:
        """The line, with the expression marked."""
        bounds = bounds_at(self.code, self.instruction)
        if bounds is None or bounds[0] > len(self.source.lines):
            return Mark.at(self.place, what)
        line, column, end_line, end_column = bounds
        text = self.source.lines[line - 1]
        raw = text.encode()
        start = len(raw[:column].decode(errors="replace"))
        end = len(raw[:end_column].decode(errors="replace")) if end_line == line else len(text.rstrip())
        return Mark.at(self.place._replace(line=line), what, (start, end))


class Frame(Spot):
    """A frame of the user's program, while it or its traceback lives.

    Attributes:
        names: What its variables held, and behind them those of its module.
    """

    __slots__ = ("_frame", "_names")

    def __init__(self, frame: FrameType, instruction: int, line: int) -> None:
        super().__init__(frame.f_code, instruction, line)
        self._frame = frame
        self._names: Mapping[str, Any] | None = None

    @property
    def local(self) -> Mapping[str, Any]:
        """What its own variables held."""
        if self._names is None:
            self._names = variables(self._frame)
        return self._names

    @property
    def module(self) -> Mapping[str, Any]:
        """The variables of its module."""
        return self._frame.f_globals

    def value(self, name: str) -> Any:
        """What a name stands for here; raises NameError if it stands for nothing."""
        for scope in (self.local, self.module, vars(__import__("builtins"))):
            if name in scope:
                return scope[name]
        raise NameError(name)

    def evaluated(self, node: ast.expr | None) -> Any:
        """What a name or a chain of attributes and constant subscripts stands for now; None if it cannot be told.

        Nothing of the user's runs: properties are not called.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            try:
                return self.value(node.id)
            except NameError:
                return None
        if isinstance(node, ast.Attribute):
            return attribute(self.evaluated(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return item(self.evaluated(node.value), node.slice.value)
        return None


def attribute(thing: Any, name: str) -> Any:
    """An attribute without running a property of the user's; None if there is none."""
    from torch import Tensor, nn  # noqa: PLC0415

    if thing is None:
        return None
    if isinstance(thing, nn.Module):
        for kept in (thing.__dict__, thing._parameters, thing._buffers, thing._modules):
            if name in kept:
                return kept[name]
    if isinstance(getattr(type(thing), name, None), property) and not isinstance(thing, Tensor):
        return None
    if name == "grad" and isinstance(thing, Tensor) and not (thing.is_leaf or thing.retains_grad):
        return None  # torch would warn
    try:
        return getattr(thing, name, None)
    except Exception:  # whatever the program's own __getattr__ raises
        return None


def item(thing: Any, key: Any) -> Any:
    """An item of a container of Python's own, or of a module; None if there is none."""
    from torch import nn  # noqa: PLC0415

    if not isinstance(thing, dict | list | tuple | nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return None
    try:
        return thing[key]
    except (KeyError, IndexError, TypeError):
        return None


def frames_of(trace: TracebackType | None) -> Iterator[tuple[FrameType, int, int]]:
    """The frames of a traceback, outermost first, each with the instruction and the line it was at."""
    while trace is not None:
        yield trace.tb_frame, trace.tb_lasti, trace.tb_lineno
        trace = trace.tb_next


def user_frames(trace: TracebackType | None) -> list[Frame]:
    """The user's frames of a traceback, outermost first."""
    files = user_files(())
    return [Frame(*each) for each in frames_of(trace) if files.own(each[0])]
