"""The catalogues of messages: ``python -m tools.messages`` extracts, merges and compiles them.

``src/pullback/locale/pullback.pot`` has every text that ``say`` is given, and the title and the page of every check;
``zh_CN/LC_MESSAGES/pullback.po`` has their translations, which are kept, and ``pullback.mo`` is what gettext reads.
A text that is no more stays in the .po as long as it is translated, marked obsolete (``#~``).
"""

from __future__ import annotations

import ast
import re
import struct
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pullback"
LOCALE = SOURCE / "locale"
LANGUAGES = ("zh_CN",)
HEADER = "Content-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def messages() -> dict[str, list[str]]:
    """Every text that can be shown, with the places where it stands (file and line), in the order of the files."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        texts = [text for node in nodes if (text := _said(node))]
        if "/checks/" in name:
            texts += [text for node in nodes for text in _of_check(node)]
        for text, line in sorted(texts, key=lambda text: text[1]):
            found.setdefault(text, []).append(f"{name}:{line}")
    return found


def placeholders(text: str) -> set[str]:
    """The names in braces."""
    return set(re.findall(r"\{(\w+)[^}]*\}", text.replace("{{", "").replace("}}", "")))


def read(path: Path) -> dict[str, str]:
    """The translations of a .po file by text, obsolete ones too."""
    entries: dict[str, str] = {}
    parts: dict[str, str] = {}
    where = ""
    if not path.exists():
        return entries
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        bare = line.removeprefix("#~ ").removeprefix("#~")
        if bare.startswith("msgid "):
            parts, where = {"msgid": "", "msgstr": ""}, "msgid"
        elif bare.startswith("msgstr "):
            where = "msgstr"
        elif not bare.startswith('"'):
            if parts.get("msgid") and parts["msgstr"]:
                entries[parts["msgid"]] = parts["msgstr"]
            parts = {}
            continue
        if parts:
            parts[where] += "".join(_unquoted(each) for each in _STRING.findall(bare))
    return entries


def written(found: dict[str, list[str]], translations: dict[str, str], *, template: bool = False) -> str:
    """A .po file: the texts in order, then what is obsolete. Line numbers are left out, for they change too often."""
    blocks = [f'msgid ""\nmsgstr ""\n{_quoted(HEADER)}']
    for text, places in found.items():
        files = dict.fromkeys(each.partition(":")[0] for each in places)
        lines = [f"#: {each}" for each in files]
        if placeholders(text):
            lines.append("#, python-brace-format")
        lines += [_entry("msgid", text), _entry("msgstr", "" if template else translations.get(text, ""))]
        blocks.append("\n".join(lines))
    for text, translation in translations.items():
        if text not in found and not template:
            entry = f"{_entry('msgid', text)}\n{_entry('msgstr', translation)}"
            blocks.append("\n".join(f"#~ {line}" for line in entry.splitlines()))
    return "\n\n".join(blocks) + "\n"


def compiled(translations: dict[str, str]) -> bytes:
    """A .mo file: a table of the texts, sorted, one of their translations, and all of them, each ended by a zero."""
    pairs = sorted((text.encode(), said.encode()) for text, said in {"": HEADER, **translations}.items() if said)
    start = 7 * 4
    at = start + 16 * len(pairs)
    tables: list[list[int]] = [[], []]
    body = b""
    for side in (0, 1):
        for pair in pairs:
            tables[side] += [len(pair[side]), at + len(body)]
            body += pair[side] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), start, start + 8 * len(pairs), 0, at)
    return head + b"".join(struct.pack(f"<{len(table)}I", *table) for table in tables) + body


def current(translations: dict[str, str]) -> dict[str, str]:
    """The translations of the texts that there are."""
    return {text: translations[text] for text in messages() if translations.get(text)}


def main() -> None:
    """Extract, merge and compile."""
    found = messages()
    LOCALE.mkdir(exist_ok=True)
    (LOCALE / "pullback.pot").write_text(written(found, {}, template=True), encoding="utf-8")
    for language in LANGUAGES:
        folder = LOCALE / language / "LC_MESSAGES"
        folder.mkdir(parents=True, exist_ok=True)
        translations = read(folder / "pullback.po")
        (folder / "pullback.po").write_text(written(found, translations), encoding="utf-8")
        (folder / "pullback.mo").write_bytes(compiled(current(translations)))
        missing = sum(not translations.get(text) for text in found)
        print(f"{language}: {len(found)} texts, {missing} without a translation")


def _said(node: ast.AST) -> tuple[str, int] | None:
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "say" and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return first.value, node.lineno
    return None


def _of_check(node: ast.AST) -> list[tuple[str, int]]:
    """The page and the title of a check: the docstring of a class with ``title = "..."`` in its body."""
    if not isinstance(node, ast.ClassDef):
        return []
    titles = [
        (each.value.value, each.lineno)
        for each in node.body
        if isinstance(each, ast.Assign)
        and [getattr(target, "id", "") for target in each.targets] == ["title"]
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
    ]
    page = ast.get_docstring(node)
    return [(page, node.lineno), *titles] if titles and page else titles


def _entry(key: str, text: str) -> str:
    if "\n" in text.rstrip("\n"):
        return f'{key} ""\n{_quoted(text)}'
    return f"{key} {_quoted(text)}"


def _quoted(text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    return "\n".join(f'"{_escaped(line)}"' for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")


def _unquoted(text: str) -> str:
    signs = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(.)", lambda found: signs.get(found[1], found[1]), text[1:-1])


if __name__ == "__main__":
    main()
