"""All that there is to know of why a root has no graph: by the tape, or by source and live values."""

from __future__ import annotations

import ast
import os
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts import names
from pullback.diagnose.evidence.cuts.found import Cut, Found, Region
from pullback.diagnose.evidence.cuts.heard import confirmed, from_tape
from pullback.diagnose.evidence.cuts.regions import region_of
from pullback.diagnose.evidence.cuts.walker import Walker
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.freed.flow import loops_around
from pullback.diagnose.evidence.slices import (
    Body,
    Part,
    entered,
)
from pullback.graph.recording.userfiles import user_files

_KNOWN: WeakKeyDictionary[Case, Found] = WeakKeyDictionary()


def found_in(case: Case) -> Found:
    """All that there is to know of why the root of a case has no graph; found once for each case."""
    found = _KNOWN.get(case)
    if found is None:
        found = _KNOWN[case] = _look(case)
    return found


def cuts_of(case: Case) -> list[Cut]:
    """The places where the way from the parameters to the root of a case ends, the likeliest first."""
    return found_in(case).cuts


def concerns(case: Case) -> bool:
    """Whether a case is about a root without a graph: a tensor without one, or a number or array."""
    if isinstance(case.error, AttributeError):
        return case.says(*(f"'{kind}' object has no attribute 'backward'" for kind in names.NUMBERS))
    if isinstance(case.error, TypeError):
        roots = case.asked.roots if case.asked is not None else []
        return case.says(*(f"'{kind}' object is not iterable" for kind in names.NUMBERS)) and any(
            not isinstance(root, Tensor) for root in roots
        )
    return case.says("does not require grad and does not have a grad_fn")


def root_of(case: Case) -> ast.expr | None:
    """What was differentiated, as it is written, also where a library of the user's calls backward."""
    site = case.site
    if site is None:
        return None
    node = site.node
    if isinstance(case.error, AttributeError):
        if isinstance(node, ast.Call):
            node = node.func
        return node.value if isinstance(node, ast.Attribute) and node.attr == "backward" else None
    root = case.root
    if case.asked is not None and case.asked.method and case.call is not None:
        func = case.call.func
        if not isinstance(func, ast.Attribute) or func.attr != "backward":
            root = None
        elif case.call.args and any(site.evaluated(case.call.args[0]) is each for each in case.asked.tensors):
            root = case.call.args[0]  # accelerator.backward(loss)
    if root is None and case.call is not None and case.call.args:
        root = case.call.args[0]
    if isinstance(root, ast.List | ast.Tuple):
        number = next((number for number in range(len(root.elts)) if case.says(f"element {number} of tensors")), 0)
        root = root.elts[min(number, len(root.elts) - 1)] if root.elts else None
    return root


def _look(case: Case) -> Found:
    found = Found()
    node = root_of(case)
    if node is None or case.site is None:
        return found
    body = Body.of(case.frames)
    found.root = Part(node, body)
    walker = Walker(case)
    found.answer = walker.status(found.root)
    found.cuts = walker.cuts
    found.leaves = walker.leaves
    found.suspects = walker.suspects
    found.off = not torch.is_grad_enabled()
    exact = from_tape(case, walker)
    if exact:
        found.cuts = exact
    elif case.tape is not None:
        found.cuts = confirmed(case, found.cuts)
    order = {id(cut): number for number, cut in enumerate(walker.cuts)}
    found.cuts.sort(key=lambda cut: (not cut.exact, not cut.sure, order.get(id(cut), len(order))))
    if _captured(case, found.root):
        for cut in found.cuts:
            if cut.region is not None:
                cut.kind = "closure"
    if not found.cuts:
        found.cuts = walker.weak
    if not found.cuts and found.answer is not False:
        found.cuts = _under_a_generator(case, found)
    return found


def _under_a_generator(case: Case, found: Found) -> list[Cut]:
    """A block without recording in the generator of a loop around a line: it stays open while the loop's body runs."""
    root = found.root
    if root is None or not isinstance(root.node, ast.expr):
        return []
    for number in range(len(case.frames) - 1, -1, -1):
        body = Body.of(case.frames, number)
        for loop in loops_around(case.frames[number]):
            for node in ast.walk(loop.iter) if isinstance(loop, ast.For) else ():
                region = _left_open(node, body) if isinstance(node, ast.Call) else None
                if region is not None:
                    return [Cut("no_grad", root.node, root.body, root.node, found.answer is True, region)]
    return []


def _left_open(call: ast.Call, body: Body) -> Region | None:
    """The block around a yield of the generator that a call makes."""
    for thing in body.callees(call.func):
        inner = entered(thing, call, body)
        for node in ast.walk(inner.scope) if inner is not None else ():
            region = region_of(node, inner) if isinstance(node, ast.Yield) and inner is not None else None
            if region is not None and isinstance(region[1], ast.With):
                return region
    return None


def _captured(case: Case, root: Part) -> bool:
    """Whether the root was made outside of the closure of an optimizer that asks for its gradient."""
    body = root.body
    if not isinstance(root.node, ast.Name) or body.is_local(root.node.id) or isinstance(body.scope, ast.Module):
        return False
    folder = f"optim{os.sep}"
    files = [frame.f_code.co_filename for frame, _, _ in frames_of(case.error.__traceback__)]
    last = max((number for number, file in enumerate(files) if file == body.source.file), default=0)
    return any(folder in file and not user_files(()).own_file(file) for file in files[:last])
