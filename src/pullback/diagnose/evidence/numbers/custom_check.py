"""What the faults of the ``backward`` of custom Functions have in common."""

from __future__ import annotations

import ast
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.custom import Custom, custom_of
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Diagnosis, Edit, Mark
from pullback.graph.values import Place
from pullback.language import say


class CustomFault(Fault):
    """A fault that is told what each ``backward`` of a custom Function returns."""

    def __init__(self) -> None:
        self._joined: weakref.ref[Custom] | None = None

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        custom = custom_of(audit)
        if self._joined is None or self._joined() is not custom:
            self._joined = weakref.ref(custom)
            here = weakref.ref(audit)

            def told(node: Any, came: tuple[Any, ...], returned: tuple[Any, ...]) -> None:
                listening = here()
                finding = self.tell(listening, node, came, returned) if listening is not None else None
                if finding is not None and listening is not None:
                    listening.report(finding)

            custom.listeners.append(told)
        custom.begin(backward)

    @abstractmethod
    def tell(self, audit: Audit, node: Any, came: tuple[Any, ...], returned: tuple[Any, ...]) -> Diagnosis | None:
        """The finding."""


def returns(node: Any) -> tuple[str, ast.Return | None]:
    """The file of a ``backward``, and its return statement, if it has one only."""
    code = node._forward_cls.backward.__code__
    source = source_of(code.co_filename)
    scope = source.function_at(code.co_firstlineno, code.co_name)
    found = [each for each in ast.walk(scope) if isinstance(each, ast.Return) and source.scope(each) is scope]
    return code.co_filename, found[0] if len(found) == 1 else None


def marks_at_return(node: Any, place: int, what: str) -> list[Mark]:
    """The value that a ``backward`` returns for an argument; the function itself if there are several returns."""
    file, statement = returns(node)
    code = node._forward_cls.backward.__code__
    name = f"{node._forward_cls.__name__}.backward"
    if statement is None:
        return [Mark.at(Place(file, code.co_firstlineno, name), what)]
    value = returned_value(statement, place)
    span = source_of(file).span(value) if value is not None else None
    line = value.lineno if value is not None else statement.lineno
    return [Mark.at(Place(file, line, name), what, span)]


def returned_value(statement: ast.Return, place: int) -> ast.expr | None:
    """The expression that is returned for an argument."""
    value = statement.value
    if isinstance(value, ast.Tuple):
        return value.elts[place] if place < len(value.elts) else None
    return value if place == 0 else None


def replaced_return(node: Any, place: int, text: str) -> tuple[Edit, ...]:
    """The edit that returns something else for an argument."""
    file, statement = returns(node)
    value = returned_value(statement, place) if statement is not None else None
    if value is None or value.lineno != value.end_lineno:
        return ()
    return (source_of(file).replaced(value, text),)


def shown(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as it is shown."""
    return tuple(int(size) for size in shape)


def asked_mark(backward_spot: Any) -> list[Mark]:
    """The line that asked for the pass."""
    return [backward_spot.mark(say("differentiated here"))] if backward_spot is not None else []
