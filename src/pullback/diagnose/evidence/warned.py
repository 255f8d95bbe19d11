"""A warning of torch, at a line of the user's: the statement there, and the calls in the file that it is about."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.evidence.training.loop import calls_named
from pullback.diagnose.values import Edit, Mark


def told(mark: Mark, what: str) -> Mark:
    """The line of a warning, with what happened there."""
    return Mark(mark.place, what, mark.span, mark.text)


def calls_at(mark: Mark, *names: str) -> Iterator[tuple[Source, ast.Call]]:
    """The calls of these names that the line of a warning is part of; any that the file has, if there is none."""
    source = source_of(mark.place.file)
    found = list(calls_named(source.tree, *names))
    line = mark.place.line
    here = [each for each in found if each.lineno <= line <= (each.end_lineno or each.lineno)]
    for each in here or found:
        yield source, each


def with_keyword(source: Source, call: ast.Call, name: str, value: str) -> Edit:
    """The edit that gives a call a keyword argument."""
    for each in call.keywords:
        if each.arg == name:
            return source.replaced(each.value, value)
    text = source.text(call)[:-1].rstrip().rstrip(",")
    return source.replaced(call, f"{text}, {name}={value})" if call.args or call.keywords else f"{text}{name}={value})")
