"""The plugin of pytest: ``pytest --pullback`` explains failing tests. It imports nothing before it is asked.

It is a package beside ``pullback``, because pytest imports every plugin that is installed, and ``import pullback``
imports torch.
"""

from __future__ import annotations

from argparse import Namespace
from copy import copy
from typing import Any

import pytest

LEVELS = ("default", "trace", "audit", "strict")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--pullback``."""
    parser.getgroup("pullback").addoption(
        "--pullback",
        nargs="?",
        const="default",
        default=None,
        metavar="LEVEL",
        help="say why backward failed, below the traceback of a failing test; LEVEL is trace, audit or strict: "
        "record more while each test runs",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Read ``--pullback tests`` as ``--pullback`` and a folder of tests."""
    if "--pullback" not in args:
        return
    place = args.index("--pullback")
    if args[place + 1 : place + 2] and args[place + 1] in LEVELS:
        return
    args[place] = "--pullback=default"
    before: Namespace = early_config.known_args_namespace
    early_config.known_args_namespace = parser.parse_known_args(args, namespace=_without(copy(before)))


def pytest_configure(config: pytest.Config) -> None:
    """Begin, if it was asked for.

    Raises:
        UsageError: There is no such level.
    """
    level: Any = config.getoption("--pullback")
    if level is None:
        return
    if level not in LEVELS:
        raise pytest.UsageError(f"--pullback={level}: there is no such level; one of {', '.join(LEVELS)}")
    from pullback.diagnose.pytest_plugin import Plugin  # noqa: PLC0415

    config.pluginmanager.register(Plugin(level), "pullback-diagnoses")


def _without(namespace: Namespace) -> Namespace:
    namespace.pullback = None
    return namespace
