"""A page in a real browser, without a network, and with every complaint of the browser counted as a failure."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pullback.view.page import page
from pullback.view.picture import Picture

HOW = "`make browser` installs what this test needs"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Headless Chromium, or a skip that says how to get it; while it runs, so does an event loop in this thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason=f"playwright is not installed; {HOW}")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip(f"Chromium is not installed; {HOW}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open the page of a picture; at the end nothing may have been asked of the network, and nothing complained."""
    pytest.importorskip("graphlay", reason=f"graphlay is not installed; {HOW}")
    problems: list[str] = []
    contexts = []

    def open_page(picture: Picture, *, language: str = "en", **options: Any) -> Any:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(page(picture, language=language), encoding="utf-8")
        context = chromium.new_context(
            **({"viewport": {"width": 1300, "height": 900}, "reduced_motion": "reduce"} | options)
        )
        context.set_default_timeout(10_000)
        contexts.append(context)

        def route(one: Any) -> None:
            if one.request.url == file.as_uri():
                one.continue_()
            else:
                problems.append(f"asked for {one.request.url}")
                one.abort()

        context.route("**/*", route)
        shown = context.new_page()
        shown.on("console", lambda said: problems.append(said.text) if said.type in {"error", "warning"} else None)
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
        shown.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            shown.wait_for_selector("html[data-drawn]")
        return shown

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
