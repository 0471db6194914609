"""Noun phrases: the rules a user reads in docs/phrases.md, marked phrases, any text at all."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppmn
from experiments import phrase_accuracy
from experiments.train_tagger import save_tagger
from ppmn.errors import InputError
from ppmn.phrases.rules import find_phrases, parse_brackets
from ppmn.phrases.tagger import Tagger, feature_hash, load_tagger

WORDS = [
    "a",
    "the",
    "few",
    "red",
    "group",
    "of",
    "people",
    "cat's",
    "2",
    ",",
    "and",
    ".",
    "standing",
    "on",
    "left",
]


def texts(caption: str) -> list[str]:
    return [phrase.text for phrase in find_phrases(caption)]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("In this image I can see a man wearing a black t-shirt.", ["image", "man", "black t-shirt"]),
        ("There are few people standing on the road.", ["few people", "road"]),
        ("We can see a group of people and a couple of cars.", ["group of people", "couple of cars"]),
        ("There is a plate of food on the table.", ["plate", "food", "table"]),
        ("His dog and their two cats look at this bird.", ["dog", "two cats", "bird"]),
        ("Some trees, another chair and many boats.", ["Some trees", "another chair", "many boats"]),
        ("On the left side of it there is a traffic signal.", ["left side", "traffic signal"]),
        ("At the bottom right there is a tall building.", ["bottom right", "tall building"]),
        ("A black and white dog sits in front of a house.", ["black and white dog", "house"]),
        ("Two cars are parked beside a parked truck.", ["Two cars", "parked truck"]),
        ("He is holding it and they are looking at her.", []),
        ("There is a painting and a light on the ceiling.", ["painting", "light", "ceiling"]),
        ("The man's hat is red.", ["man", "hat"]),
        ("There is a white color bag near the wall.", ["white color bag", "wall"]),
        ("A dining table and a washing machine are here.", ["dining table", "washing machine"]),
        ("A man on a red\ncar near\n\nTwo dogs", ["man", "red\ncar", "Two dogs"]),
        ("A BROWN HORSE NEAR THE OLD BARN", ["BROWN HORSE", "OLD BARN"]),
        ("", []),
    ],
)  # fmt: skip
def test_rules(caption: str, expected: list[str]) -> None:
    assert texts(caption) == expected


def test_head_and_plural() -> None:
    found = {
        phrase.text: phrase
        for phrase in find_phrases("A red bus, three dogs, a group of people and the grass.")
    }
    assert {text: (phrase.head, phrase.plural) for text, phrase in found.items()} == {
        "red bus": ("bus", False),
        "three dogs": ("dogs", True),
        "group of people": ("people", True),
        "grass": ("grass", False),
    }


def test_abstract() -> None:
    caption = (
        "In the background of the image, on the left side and at the top, a woman in a white top holds a ball"
        " in her right hand. In this picture there is a picture on the wall. At the top right corner"
        " it is blue in color."
    )
    abstract = [phrase.text for phrase in find_phrases(caption) if phrase.abstract]
    assert abstract == ["background", "image", "left side", "top", "picture", "top right corner", "color"]
    assert {"white top", "ball", "right hand", "picture", "wall"} <= {
        p.text for p in find_phrases(caption) if not p.abstract
    }


def test_brackets_override() -> None:
    assert parse_brackets("[two dogs] on [ the grass ] ") == ("two dogs on  the grass  ", [(0, 8), (13, 22)])
    assert parse_brackets("no brackets") == ("no brackets", None)
    found = find_phrases("I see [two dogs] and [the background], no cat")
    assert [(p.text, p.start, p.plural, p.abstract) for p in found] == [
        ("two dogs", 6, True, False),
        ("the background", 19, False, False),
    ]


@pytest.mark.parametrize("caption", ["[a dog", "a dog]", "[a [big] dog]", "a [] dog", "a [ ] dog", "]["])
def test_broken_brackets_are_a_sentence(caption: str) -> None:
    with pytest.raises(InputError, match="bracket"):
        find_phrases(caption)


def test_spans_override() -> None:
    caption = "[sic] the two old dogs"
    (found,) = find_phrases(caption, spans=[(10, 22)])
    assert (found.text, found.head, found.plural) == ("two old dogs", "dogs", True)
    assert find_phrases(caption, spans=[]) == []
    for span in [(-1, 3), (3, 3), (5, 4), (0, 99), (5, 6)]:
        with pytest.raises(InputError, match=rf"\({span[0]}, {span[1]}\).*22 characters"):
            find_phrases(caption, spans=[span])


def test_not_text_is_a_sentence() -> None:
    with pytest.raises(InputError, match="not NoneType"):
        find_phrases(None)  # type: ignore[arg-type]


def check(caption: str) -> None:
    end = 0
    for phrase in find_phrases(caption):
        assert end <= phrase.start < phrase.end <= len(caption)
        assert phrase.text == caption[phrase.start : phrase.end] == phrase.text.strip()
        assert phrase.head
        end = phrase.end


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(exclude_characters="[]"), max_size=300))
def test_any_text_gives_ordered_phrases(caption: str) -> None:
    check(caption)


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS)))
def test_any_words_give_ordered_phrases(words: list[str]) -> None:
    check(" ".join(words))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text("ab \n.é", max_size=5), st.text("xyz'", min_size=1, max_size=5)), max_size=6)
)
def test_brackets_are_spans(parts: list[tuple[str, str]]) -> None:
    text, spans = parse_brackets("".join(f"{between}[{inside}]" for between, inside in parts))
    assert text == "".join(between + inside for between, inside in parts)
    assert [text[start:end] for start, end in spans or []] == [inside for _, inside in parts]


@pytest.mark.parametrize(
    "piece", ["dog ", "group of ", "red, ", "a-", "é", "🐕‍🦺", "狗", "كلب ", "x", "\x00", "."]
)
def test_long_and_foreign(piece: str) -> None:
    check(piece * 12_000)


def test_sentences_do_not_touch_each_other() -> None:
    first, second = "In this image there is a dog. ", "We can see two red cars on the road."
    assert texts(first + second) == texts(first) + texts(second)


def test_nothing_is_read_at_import_and_the_name_is_a_function() -> None:
    code = (
        "import sys, ppmn; assert 'numpy' not in sys.modules;"
        "import ppmn.phrases.rules; from ppmn import phrases;"
        "assert ppmn.phrases.tagger.load_tagger.cache_info().misses == 0; assert phrases is ppmn.phrases;"
        "assert ppmn.find_phrases('two dogs')[0].text == 'two dogs'; "
        "assert ppmn.find_phrases('a dog')[0].text == 'dog'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        _ = ppmn.nothing_of_that_name


def test_weights_come_back(tmp_path: Path) -> None:
    weights = np.array([[3, -128, 0], [0, 0, 7], [0, 0, 0]], np.int8)
    allowed = np.array([[True, False, True], [True, True, True]])
    words = np.array([feature_hash("dog")], np.uint32)
    ours = Tagger(["A", "B", "C"], np.array([1, 9], np.uint32), weights, words, allowed)
    save_tagger(ours, tmp_path / "tagger.npz")
    back = load_tagger(tmp_path / "tagger.npz")
    assert back.tags == ours.tags and back.row == ours.row and back.word == ours.word
    assert (back.weights == weights).all() and (back.allowed == allowed).all()


def test_tags() -> None:
    assert load_tagger().tag(["The", "dog", "was", "sleeping", "."]) == ["DT", "NN", "VBD", "VBG", "."]


def test_narrated(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hand-marked narratives, and every real narrative gives phrases."""
    phrase_accuracy.main(shared / "data" / "narrated")
    assert float(capsys.readouterr().out.split("F1 ")[1].split()[0]) >= 0.95
    assert all(
        find_phrases(line) for line in (shared / "data" / "narratives.txt").read_text().splitlines()[:200]
    )


@pytest.mark.soak
def test_all_narratives(shared: Path) -> None:
    assert all(
        find_phrases(line) for line in (shared / "data" / "narratives.txt").read_text().splitlines() if line
    )


def test_phrase_accuracy_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of two marked phrases found, one found that is not marked."""
    parts = [("There is", False), ("a dog", True), ("near a", False), ("very", True), ("big house.", False)]
    segments = [{"utterance": text, "noun": noun} for text, noun in parts]
    (tmp_path / "annotations").mkdir()
    caption = "There is a dog near a very big house."
    narrative = {"image_id": "1", "caption": caption, "segments": segments}
    (tmp_path / "annotations" / "png_coco_val2017.json").write_text(json.dumps([narrative]))
    phrase_accuracy.main(tmp_path)
    assert (
        "2 phrases marked, 2 found, 1 equal\nprecision 0.5000  recall 0.5000  F1 0.5000"
        in capsys.readouterr().out
    )
