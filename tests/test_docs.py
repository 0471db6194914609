"""What the documentation shows: its examples run, its commands parse, its links lead somewhere."""

import argparse
import doctest
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from ppmn.cli import build_parser

PROJECT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((PROJECT / "docs").glob("*.md")), *sorted(PROJECT.glob("*.md"))]
COMMAND = re.compile(
    r"^ {4}(?:echo .+ \| |torchrun --nproc-per-node \d -m )?ppmn(?:\.cli)? (.+)$", re.MULTILINE
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)]*\)")


def commands() -> list[str]:
    """The `ppmn` commands of all pages, without continued lines and usage notation."""
    found = [line for page in PAGES for line in COMMAND.findall(page.read_text(encoding="utf-8"))]
    return sorted({line for line in found if not line.endswith("\\") and " [-" not in line})


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    words = shlex.split(re.split(r" {2,}(?:#|\w)| [<>] ", command)[0], comments=True)
    try:
        build_parser().parse_args(words)
    except SystemExit as stop:
        assert stop.code == 0, command


def options(parser: argparse.ArgumentParser) -> set[str]:
    """All options of a parser and its sub-commands."""
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for command in action.choices.values() for option in options(command)}
    return found


@pytest.mark.parametrize("name", ["guide.md", "server.md", "training.md", "weights.md"])
def test_options_exist(name: str) -> None:
    text = (PROJECT / "docs" / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z-]+)", text))
    assert named and named <= options(build_parser())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


def test_phrase_examples() -> None:
    text = (PROJECT / "docs" / "phrases.md").read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(text.replace("```", "\n"), {}, "phrases.md", None, 0)
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_own_image_encoder() -> None:
    text = (PROJECT / "docs" / "extending.md").read_text(encoding="utf-8")
    code, _ = re.findall(
        r"```python\n(.+?)```", text, re.DOTALL
    )  # tests/baselines/test_methods.py has the other
    names: dict[str, object] = {}
    exec(code, names)
    grounding = names["grounder"].ground(Image.new("RGB", (80, 60), "skyblue"), "The sky above a house.")  # type: ignore[attr-defined]
    assert [phrase.text for phrase in grounding] == ["sky", "house"]
    assert grounding[0].mask.shape == (60, 80)
