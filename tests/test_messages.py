"""Every text that is shown is translated into Chinese with the same placeholders, and the catalogues are current."""

import gettext
import io

import pytest
from tools import messages

import pullback.language

FOLDER = messages.LOCALE / "zh_CN" / "LC_MESSAGES"
HOW = "run: python -m tools.messages, and translate what is empty in " + str(FOLDER.relative_to(messages.ROOT))


@pytest.fixture(scope="module")
def found():
    return messages.messages()


@pytest.fixture(scope="module")
def translations():
    return messages.read(FOLDER / "pullback.po")


def test_every_text_is_translated(found, translations):
    missing = [f"{places[0]}: {text}" for text, places in found.items() if not translations.get(text)]
    assert not missing, f"{len(missing)} texts; {HOW}"


def test_placeholders_are_the_same(found, translations):
    wrong = [
        text
        for text in found
        if translations.get(text) and messages.placeholders(text) != messages.placeholders(translations[text])
    ]
    assert not wrong


def test_the_catalogues_are_up_to_date(found, translations):
    template = (messages.LOCALE / "pullback.pot").read_text(encoding="utf-8")
    assert template == messages.written(found, {}, template=True), HOW
    assert (FOLDER / "pullback.po").read_text(encoding="utf-8") == messages.written(found, translations), HOW
    assert (FOLDER / "pullback.mo").read_bytes() == messages.compiled(messages.current(translations)), HOW


def test_gettext_reads_what_is_compiled():
    texts = {"one": "一", 'a "quoted"\nline\twith \\': "两行\n{name}", "b": "乙"}
    catalogue = gettext.GNUTranslations(io.BytesIO(messages.compiled(texts)))
    assert {text: catalogue.gettext(text) for text in texts} == texts
    assert catalogue.gettext("other") == "other"


def test_translations_survive_a_merge(tmp_path):
    found = {"one {n}": ["a.py:1"], 'two\n"lines"\\': ["a.py:2"]}
    translated = {"one {n}": "一 {n}", 'two\n"lines"\\': "两\n行", "gone": "没了"}
    path = tmp_path / "x.po"
    path.write_text(messages.written(found, translated), encoding="utf-8")
    assert messages.read(path) == translated
    assert '#~ msgid "gone"' in path.read_text(encoding="utf-8")


def test_placeholders_are_the_names_in_braces():
    assert messages.placeholders("{a} {b:.3f} {{c}}") == {"a", "b"}


def test_say_fills_in_what_is_said_in_chinese():
    with pullback.language.spoken("zh"):
        assert pullback.language.say("audit: nothing found") == "审查：没有发现问题"
