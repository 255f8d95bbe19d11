"""The words of a page in the languages it speaks; whatever is not a word of ours stays as it is."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


@cache
def chinese() -> dict[str, str]:
    """From an English word or sentence to Simplified Chinese; ``{}`` stands for anything, in the same order in both."""
    return dict(json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8")))


def word(english: str, language: Language) -> str:
    """A word in a language, or the word itself where it is not known."""
    return chinese().get(english, english) if language == "zh" else english
