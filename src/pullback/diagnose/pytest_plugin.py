"""What ``pytest --pullback`` does: a failing test is explained in a section of its report."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pullback.diagnose.reports.show import unknown
from pullback.diagnose.reports.text import plain
from pullback.diagnose.session import Level, Session
from pullback.diagnose.traces import clean
from pullback.diagnose.values import Report

SECTION = "pullback"


class Plugin:
    """Watches every test, and explains those that fail.

    Args:
        level: What is recorded.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self._reports: dict[str, Report] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watch a test."""
        session = Session(self.level)
        session.start()
        error: BaseException | None = None
        try:
            return (yield)
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.stop()
            failed = error if isinstance(error, Exception) else None
            self._reports[item.nodeid] = session.report(failed, _variables(item))
            if failed is not None:
                clean(failed)
            del error, failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the diagnosis below the traceback."""
        made = yield
        error = call.excinfo.value if call.excinfo is not None else None
        report = self._reports.pop(item.nodeid, Report()) if call.when == "call" else Report()
        if made.failed and isinstance(error, Exception) and call.when != "call":
            report = Session().report(error)
        if text := plain(report):
            made.sections.append((SECTION, text))
        elif made.failed and error is not None and (line := unknown(error)):
            made.sections.append((SECTION, line))
        return made

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What an audit found in tests that passed; a failing test shows its own."""
        for report in terminalreporter.stats.get("passed", ()):
            for name, text in getattr(report, "sections", ()):
                if name == SECTION:
                    terminalreporter.section(f"{SECTION}: {report.nodeid}")
                    terminalreporter.write_line(text)


def _variables(item: pytest.Item) -> dict[str, Any]:
    module = getattr(item, "module", None)
    return vars(module) if module is not None else {}
