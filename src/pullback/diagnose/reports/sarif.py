"""Reports as SARIF 2.1.0, which code hosts and editors show beside the lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pullback.diagnose.check import Cause, Check, checks
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark, Report
from pullback.language import say

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: Report, version: str = "") -> str:
    """A report as the text of a SARIF file.

    Args:
        report: The report.
        version: The version of Pullback.
    """
    return json.dumps(sarif(report, version), indent=1, ensure_ascii=False)


def sarif(report: Report, version: str = "") -> dict[str, Any]:
    """A report as the object that SARIF's JSON says."""
    kinds = checks()
    places = {kind.code: number for number, kind in enumerate(kinds)}
    driver: dict[str, Any] = {"name": "pullback", "rules": [_rule(kind) for kind in kinds]}
    if version:
        driver["semanticVersion"] = version
    results = [_result(each, "error", places) for each in report.diagnoses]
    results += [_result(each, "warning", places) for each in report.findings]
    invocation: dict[str, Any] = {"executionSuccessful": not report.trouble}
    if report.trouble:
        invocation["toolExecutionNotifications"] = [
            {"level": "warning", "message": {"text": each}} for each in report.trouble
        ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": Path.cwd().as_uri() + "/"}},
        "invocations": [invocation],
        "results": results,
        "properties": {"torch": report.torch, "level": report.level},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: type[Check]) -> dict[str, Any]:
    page = kind.page()
    return {
        "id": kind.code,
        "name": kind.__name__,
        "shortDescription": {"text": say(kind.title)},
        "fullDescription": {"text": page.partition("\n\n")[0].replace("\n", " ")},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": "error" if issubclass(kind, Cause) else "warning"},
        "properties": {"tags": [kind.__module__.split(".")[-2]]},
    }


def _result(diagnosis: Diagnosis, level: str, places: dict[str, int]) -> dict[str, Any]:
    marks = [mark for mark in diagnosis.marks if mark.place.file]
    more = {
        "confidence": diagnosis.confidence,
        "rank": diagnosis.rank,
        "process": diagnosis.process or None,
        "doesNotHelp": list(diagnosis.useless),
    }
    result: dict[str, Any] = {
        "ruleId": diagnosis.code,
        "level": level,
        "message": {"text": f"{diagnosis.title}\n{diagnosis.cause}".strip()},
        "locations": [_location(mark) for mark in marks[:1]],
        "relatedLocations": [_location(mark) | {"id": number} for number, mark in enumerate(marks[1:], 1)],
        "properties": more,
    }
    if diagnosis.code in places:
        result["ruleIndex"] = places[diagnosis.code]
    if diagnosis.fix.edits:
        result["fixes"] = [_fix(diagnosis.fix)]
    return result


def _location(mark: Mark) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(mark.place.line, 1)}
    if mark.span is not None:
        region |= {"startColumn": mark.span[0] + 1, "endColumn": max(mark.span) + 1}
    if mark.text:
        region["snippet"] = {"text": mark.text}
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": _artifact(mark.place.file), "region": region}}
    if mark.what:
        location["message"] = {"text": mark.what}
    if mark.place.function:
        location["logicalLocations"] = [{"fullyQualifiedName": mark.place.function, "kind": "function"}]
    return location


def _artifact(file: str) -> dict[str, str]:
    if file.startswith("<"):  # a cell of a notebook, or what exec ran
        return {"uri": quote(file)}
    path = Path(file).absolute()
    try:
        return {"uri": quote(path.relative_to(Path.cwd()).as_posix()), "uriBaseId": "SRCROOT"}
    except ValueError:
        return {"uri": path.as_uri()}


def _fix(fix: Fix) -> dict[str, Any]:
    by_file: dict[str, list[Edit]] = {}
    for edit in fix.edits:
        by_file.setdefault(edit.file, []).append(edit)
    return {
        "description": {"text": fix.text},
        "artifactChanges": [
            {"artifactLocation": _artifact(file), "replacements": _replacements(edits)}
            for file, edits in by_file.items()
        ],
    }


def _replacements(edits: Sequence[Edit]) -> list[dict[str, Any]]:
    """Whole lines, up to the beginning of the line after the last."""
    replacements = []
    for edit in edits:
        region = {"startLine": edit.first, "startColumn": 1, "endLine": edit.last + 1, "endColumn": 1}
        replacement: dict[str, Any] = {"deletedRegion": region}
        if edit.text is not None:
            replacement["insertedContent"] = {"text": edit.text + "\n"}
        replacements.append(replacement)
    return replacements
