"""The reader's language: texts are written in English and looked up in a gettext catalogue."""

from __future__ import annotations

import gettext
import locale
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pullback.errors import ValueMismatch

LANGUAGES = {"en": "", "zh": "zh_CN"}
_FOLDER = Path(__file__).parent / "locale"
_spoken: list[str] = []


def say(text: str, /, **values: object) -> str:
    """A text in the reader's language, with its ``{placeholders}`` filled in.

    Example:
        >>> say("{name} has shape {shape}", name="loss", shape=(5,))
        'loss has shape (5,)'
    """
    translated = _catalogue(language()).gettext(text) if text else ""
    return translated.format(**values) if values else translated


def language() -> str:
    """The language that is spoken: the one that was asked for, or that of the environment, or English."""
    return _spoken[-1] if _spoken else _of_environment()


def speak(name: str | None) -> None:
    """Speak a language from now on: ``"en"``, ``"zh"``, or None for that of the environment.

    Raises:
        ValueMismatch: There is no such language.
    """
    _spoken.clear()
    if name is None:
        return
    short = name.replace("-", "_").partition("_")[0].lower()
    if short not in LANGUAGES:
        raise ValueMismatch(
            "There is no such language.", got=f"{name!r}", fix=f"one of {', '.join(map(repr, LANGUAGES))}"
        )
    _spoken.append(short)


@contextmanager
def spoken(name: str | None) -> Iterator[None]:
    """Speak a language inside of a ``with`` block."""
    before = list(_spoken)
    speak(name)
    try:
        yield
    finally:
        _spoken[:] = before


@cache
def _of_environment() -> str:
    named = next((value for key in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(key))), None)
    if named is None:
        named = locale.getlocale()[0] or ""
    return "zh" if named.lower().startswith(("zh", "chinese")) else "en"


@cache
def _catalogue(name: str) -> gettext.NullTranslations:
    folder = LANGUAGES[name]
    if not folder:
        return gettext.NullTranslations()
    return gettext.translation("pullback", _FOLDER, [folder], fallback=True)
