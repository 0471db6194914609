"""The captions of cases.txt: their phrases, and that none of them is taken for another language."""

import pytest
from support.captions import CASES

from experiments.narrative_words import MANY, OFTEN, STUFF, THINGS
from ppmn.phrases.rules import find_phrases


@pytest.mark.parametrize(("caption", "expected"), CASES, ids=[caption[:40] for caption, _ in CASES])
def test_phrases_of_cases(caption: str, expected: list[str]) -> None:
    assert [phrase.text for phrase in find_phrases(caption)] == expected


def test_a_single_word_is_a_phrase() -> None:
    nouns = {*THINGS, *OFTEN, *STUFF, *MANY}
    found = {noun: [phrase.text for phrase in find_phrases(noun)] for noun in nouns}
    assert found == {noun: [noun] for noun in nouns}
    with_article = {noun: [phrase.text for phrase in find_phrases(f"the {noun}")] for noun in nouns}
    assert with_article == found
