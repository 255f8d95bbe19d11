"""The activation checkpoints of a program: where they are called, and what they recompute."""

from __future__ import annotations

import ast
from typing import Any

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import calls_of, sources
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit, Mark
from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

NAMES = frozenset({"checkpoint", "checkpoint_sequential"})
Checkpoint = tuple[Source, ast.Call]


def checkpoints(case: Case) -> list[Checkpoint]:
    """The calls of ``checkpoint`` in the files of the program, other names of it included."""
    names = set(NAMES)
    for source in sources(case):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("checkpoint"):
                names |= {each.asname for each in node.names if each.asname and each.name in NAMES}
    found = [each for each in calls_of(case, names) if each[1].args]
    return [(source, call) for source, call in found if not source.text(call.func).startswith("self.")]


def reentrant(calls: list[Checkpoint]) -> list[Checkpoint]:
    """Those that do not say ``use_reentrant=False``."""
    found = []
    for source, call in calls:
        said = next((each.value for each in call.keywords if each.arg == "use_reentrant"), None)
        if not (isinstance(said, ast.Constant) and said.value is False):
            found.append((source, call))
    return found


def narrowed(calls: list[Checkpoint], function: Any) -> list[Checkpoint]:
    """Those that run a function, as far as their text tells: by its name, or as the lambda on that line."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or len(calls) < 2:
        return calls
    found = []
    for source, call in calls:
        first = call.args[0]
        name = first.attr if isinstance(first, ast.Attribute) else getattr(first, "id", "<lambda>")
        if name == code.co_name and (name != "<lambda>" or first.lineno == code.co_firstlineno):
            found.append((source, call))
    return found or calls


def non_reentrant(calls: list[Checkpoint]) -> tuple[Edit, ...]:
    """The edits that make them say ``use_reentrant=False``."""
    rewrites: dict[str, Rewrite] = {}
    for source, call in calls:
        if not user_files(()).own_file(source.file):
            return ()
        rewrite = rewrites.setdefault(source.file, Rewrite(source))
        said = next((each.value for each in call.keywords if each.arg == "use_reentrant"), None)
        if said is not None:
            rewrite.replace(said, "False")
        else:
            text = source.text(call)
            rewrite.replace(call, f"{text[:-1].rstrip().rstrip(',')}, use_reentrant=False)")
    return tuple(edit for rewrite in rewrites.values() for edit in rewrite.edits())


def marks_of(calls: list[Checkpoint], what: str) -> list[Mark]:
    """Their lines."""
    return [Mark.at(Place(source.file, call.lineno, ""), what, source.span(call)) for source, call in calls[:3]]


def recomputed(case: Case) -> Any:
    """The function or module that was computed again, or whose two runs do not agree; None if unknown."""
    function = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        if not frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/checkpoint.py"):
            continue
        local = variables(frame)
        context = local.get("ctx")
        if context is not None and "run_function" in getattr(context, "__dict__", {}):
            function = context.run_function
        kept = local.get("frame", local.get("self"))
        again = getattr(kept, "recompute_fn", None)
        if again is not None and hasattr(again, "__code__"):
            cells = dict(zip(again.__code__.co_freevars, again.__closure__ or (), strict=False))
            function = cells["fn"].cell_contents if "fn" in cells else function
    return function
