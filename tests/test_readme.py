"""README.md is executed and held to what the package and the Makefile have."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest
import torch

import pullback as pb

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def _blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def _section(name: str, mark: str) -> str:
    """The part of a README between the marks ``<!-- mark -->`` and ``<!-- /mark -->``."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {mark} -->(.*?)<!-- /{mark} -->", text, flags=re.DOTALL)
    assert found, f"{name} has no section {mark}"
    return found.group(1)


@pytest.mark.parametrize("name", READMES)
def test_the_lines_of_use_print_what_the_readme_shows(name):
    blocks = _blocks(name, "pycon")
    assert blocks
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, name, 0)
    said = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert result.attempted >= 10
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", READMES)
def test_every_public_name_is_on_the_one_screen(name):
    screen = _section(name, "api")
    missing = [public for public in pb.__all__ if not re.search(rf"\b{public}\b", screen)]
    assert not missing


@pytest.mark.parametrize("name", READMES)
def test_every_error_and_every_kind_of_seed_is_on_the_one_screen(name):
    screen = _section(name, "api")
    errors = [error for error in vars(pb.errors) if error.endswith(("Error", "Mismatch", "Warning"))]
    missing = [public for public in [*errors, *pb.seed.__all__] if not re.search(rf"\b{public}\b", screen)]
    assert not missing


@pytest.mark.parametrize("name", READMES)
def test_every_public_method_of_the_jacobian_is_on_the_one_screen(name):
    screen = _section(name, "api")
    public = [method for method in dir(pb.Jacobian) if not method.startswith("_")]
    missing = [method for method in public if not re.search(rf"\b{method}\b", screen)]
    assert not missing


@pytest.mark.parametrize("name", READMES)
def test_every_name_on_the_one_screen_exists(name):
    for dotted in re.findall(r"\bpb((?:\.\w+)+)", _section(name, "api")):
        found = pb
        for part in dotted.strip(".").split("."):
            assert hasattr(found, part), f"pb{dotted} is in {name} but not in the package"
            found = getattr(found, part)
    J = pb.jacobian(torch.sin, torch.ones(2))
    for method in re.findall(r"\bJ\.(\w+)", _section(name, "api")):
        assert hasattr(J, method), f"J.{method} is in {name} but not in the package"


@pytest.mark.parametrize("name", READMES)
def test_the_signature_of_jacobian_is_the_real_one(name):
    written = re.search(r"pb\.jacobian(\(f, .*?\))\n", _section(name, "api"), flags=re.DOTALL).group(1)
    signature = inspect.signature(pb.jacobian)
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    real = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    assert " ".join(written.split()).replace('"', "'") == real


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md"])
def test_the_commands_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    code = re.findall(r"^```\w*\n.*?^```|`[^`\n]+`", text, flags=re.MULTILINE | re.DOTALL)
    commands = set(re.findall(r"\bmake ([a-z]+)", "\n".join(code)))
    assert {"demo", "test"} <= commands
    assert commands <= targets


def test_both_languages_show_the_same_code():
    assert _blocks("README.md", "pycon") == _blocks("README.zh-CN.md", "pycon")
    assert _blocks("README.md", "python") == _blocks("README.zh-CN.md", "python")


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
