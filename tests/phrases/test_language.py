"""Captions in other languages are named; English ones, however short, are not flagged."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.captions import CASES

from experiments.narrative_words import MANY, OFTEN, STUFF, THINGS
from ppmn.errors import InputError
from ppmn.phrases import language
from ppmn.phrases.caption import parse_caption
from ppmn.phrases.language import foreign_language, language_warning, not_english

LINES = Path(__file__).with_name("languages.txt").read_text(encoding="utf-8").splitlines()
CAPTIONS = [tuple(line.split(": ", 1)) for line in LINES if line and not line.startswith("#")]
FOREIGN = [(name, caption) for name, caption in CAPTIONS if name != "English"]


@pytest.mark.parametrize(("name", "caption"), FOREIGN)
def test_other_languages_are_named(name: str, caption: str) -> None:
    assert foreign_language(caption) == name
    assert foreign_language(unicodedata.normalize("NFD", caption)) == name


def test_english_is_not_flagged() -> None:
    english = [caption for name, caption in CAPTIONS if name == "English"]
    captions = ["", *english, *THINGS, *OFTEN, *STUFF, *MANY] + [caption for caption, _ in CASES]
    flagged = {caption: foreign_language(caption) for caption in captions if foreign_language(caption)}
    assert flagged == {}


def test_a_word_is_strong_or_weak_evidence() -> None:
    for name, weak in language._WEAK_WORDS.items():
        assert not weak & language._COMMON_WORDS[name], name


def test_warning_of_a_caption() -> None:
    german = parse_caption("ein Hund auf der Wiese")
    assert german.warning == (
        "the caption seems to be German; only English is supported, "
        "so its masks are withheld unless they are asked for"
    )
    assert german.phrases
    assert not_english("собака") == "the caption seems to be in Cyrillic script; only English is supported"
    assert language_warning("собака").startswith(not_english("собака"))
    assert parse_caption("a dog on the grass").warning == ""
    assert parse_caption("[собака]").warning
    with pytest.raises(InputError, match=r"; the caption seems to be French; only English is supported$"):
        parse_caption("un chien", spans=[])


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_an_answer(caption: str) -> None:
    assert isinstance(foreign_language(caption), str)
