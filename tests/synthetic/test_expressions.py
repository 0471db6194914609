"""Captions from what people wrote of segments, and incomplete annotations."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.narration import CATEGORIES, describe, painted_image, write_painted_images

from ppmn.cli import main
from ppmn.cli.arguments import parse_spec
from ppmn.config import Augment
from ppmn.data.narratives import AnnotatedPhrase
from ppmn.data.panoptic import DataSpec, read_panoptic
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import open_narratives_of
from ppmn.synthetic.captions import GeneratedCaption, mirror_caption, swap_sides
from ppmn.synthetic.expressions import MAX_PER_IMAGE, MAX_PER_SEGMENT, split_head
from ppmn.synthetic.narrator import Narrator, rng_for
from ppmn.synthetic.wording import NounPhrase
from ppmn.training.sources import Source, open_training_sources

SIDES = ("left", "right", "Left", "RIGHT", "leftmost", "left-most", "righthand", "topleft", "9 o'clock")
NO_SIDES = (
    "bright",
    "upright",
    "leftover",
    "cleft",
    "lEft",
    "man",
    "the",
    "on",
    "next to",
    "behind",
    ",",
    "of",
)
WORDS = st.sampled_from(SIDES + NO_SIDES)


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=40))
def test_sides_exchanged_twice_are_as_before(text: str) -> None:
    assert swap_sides(swap_sides(text)) == text


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("the man on the left", "the man on the right"),
        ("LEFT guy, Rightmost girl", "RIGHT guy, Leftmost girl"),
        ("left-most lefthand topright lefty", "right-most righthand topleft righty"),
        ("bright upright leftovers", "bright upright leftovers"),
        ("dog right behind the cat on the right", "dog right behind the cat on the left"),
        ("person on the left behind the car", "person on the right behind the car"),
        ("donut at 9 o clock, cup at one o'clock", "donut at 3 o clock, cup at eleven o'clock"),
    ],
)
def test_sides_are_exchanged(text: str, other: str) -> None:
    assert swap_sides(text) == other and swap_sides(other) == text


@given(st.lists(WORDS, min_size=1, max_size=8))
def test_phrases_keep_their_words_when_a_caption_is_mirrored(parts: list[str]) -> None:
    starts = [sum(len(p) + 1 for p in parts[:n]) for n in range(len(parts))]
    phrases = tuple(AnnotatedPhrase(a, a + len(p), (1,), True) for a, p in zip(starts, parts, strict=True))
    caption = GeneratedCaption(" ".join(parts), phrases)
    mirrored = mirror_caption(caption)
    assert mirror_caption(mirrored) == caption
    assert " ".join(mirrored.caption[p.start : p.end] for p in mirrored.phrases) == mirrored.caption
    sides = re.compile("left|right", re.I)
    for before, after in zip(parts, mirrored.phrases, strict=True):
        said = mirrored.caption[after.start : after.end]
        assert len(said.split()) == len(before.split())
        assert len(sides.findall(said)) == len(sides.findall(before))


def test_only_what_people_wrote_is_said_of_incomplete_annotations() -> None:
    narrator = Narrator(CATEGORIES, complete=False)
    for seed in range(80):
        image, ids, pixels = painted_image(seed)
        image = describe(image)
        said = {e for s in image.segments for e in s.expressions}
        heads = {p.text for e in said for p in split_head(NounPhrase(e)) if isinstance(p, NounPhrase)}
        captions = narrator.captions(image, ids, pixels, rng_for(0, 0, seed), count=2, negative_phrases=3)
        captions.append(narrator(image, ids, pixels, rng_for(0, 1, seed), negative_phrases=3))
        for caption in captions:
            texts = [caption.caption[p.start : p.end] for p in caption.phrases]
            assert all(len(p.segment_ids) == 1 and not p.absent for p in caption.phrases)
            assert {t.lower() for t in texts} <= said | heads, caption.caption
            rest = caption.caption
            for text in sorted(said | heads, key=len, reverse=True):
                rest = re.sub(re.escape(text), "", rest, flags=re.I)
            assert not re.search(
                r"\b(some|two|few|many|all|both|another|other|group|are)\b|s\b(?<!is)", rest, re.I
            )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("man in beige shirt on the right side", ["[man]", "in beige shirt on the right side"]),
        ("the guy with the glove", ["the", "[guy]", "with the glove"]),
        ("catcher", ["[catcher]"]),
        ("on the far left", ["[on the far left]"]),
        ("left side of the pizza", ["[left side of the pizza]"]),
    ],
)
def test_the_head_of_an_expression(text: str, pieces: list[str]) -> None:
    found = split_head(NounPhrase(text, (1,)))
    assert [f"[{p.text}]" if isinstance(p, NounPhrase) else p for p in found] == pieces


def test_a_source_with_scores_and_without_expressions_is_complete(tmp_path: Path) -> None:
    root = write_painted_images(tmp_path / "set", segment={"score": 0.9})
    sample = Source(root, "val").sample(1, rng_for(0, 0, 0), negative_phrases=2)
    assert any(p.absent for caption in sample.captions for p in caption.phrases)


def test_expressions_become_captions_of_their_own(tmp_path: Path) -> None:
    expressions = [" left thng ", "the one on the right", "middle", "big one"]
    root = write_painted_images(tmp_path / "set", segment={"expressions": expressions})
    source = Source(root, "val")
    assert not source.complete
    for index in range(len(source)):
        for flip in (False, True):
            sample = source.sample(index, rng_for(0, 0, index), negative_phrases=2, flip=flip)
            kept = {swap_sides(e.strip()) if flip else e.strip() for e in expressions}
            alone = [c for c in sample.captions if c.caption in kept]
            assert len(sample.captions) - len(alone) <= 1 and len(sample.captions) <= MAX_PER_IMAGE
            ids = [p.segment_ids for c in alone for p in c.phrases]
            assert len(ids) == len(alone) and max(map(ids.count, ids)) <= MAX_PER_SEGMENT
            assert np.array_equal(sample.ids, source.annotation(index).ids()[:, :: -1 if flip else 1])


def test_flips_exchange_sides_in_what_people_wrote(tmp_path: Path) -> None:
    root = write_painted_images(tmp_path / "set", segment={"expressions": ["on the left"]})
    source, seen = Source(root, "val"), set()
    for n in range(12):
        sample = source.sample(0, rng_for(0, n, 0), augment=Augment(flip=True, min_crop=0.5))
        mirrored = bool((sample.ids != source.annotation(0).ids()).any())
        said = {sample.captions[0].caption}
        assert said == {"on the right" if mirrored else "on the left"}
        seen |= said
    assert len(seen) == 2


def test_an_annotated_narrative_is_mirrored_with_its_image(tmp_path: Path) -> None:
    root = write_painted_images(tmp_path / "set")
    assert main(["data", "narrate", str(root), "-o", str(root / "annotations/png_coco_val.json")]) == 0
    source = Source(root, "val")
    for index in range(len(source)):
        plain, mirrored = (source.sample(index, rng_for(0, 0, 0), flip=flip) for flip in (False, True))
        assert mirrored.captions == tuple(mirror_caption(c) for c in plain.captions)
        assert len(plain.captions) == 1 and plain.captions[0].phrases
        assert np.array_equal(mirrored.ids, plain.ids[:, ::-1])


def test_completeness_belongs_to_the_source(tmp_path: Path) -> None:
    root = write_painted_images(tmp_path / "set", segment={"expressions": ["it"]})
    assert not read_panoptic(root, "val").complete
    said = write_painted_images(tmp_path / "said", segment={"expressions": ["it"]}, complete=True)
    assert read_panoptic(said, "val").complete
    spec = parse_spec(f"{said}:val=0.5,incomplete")
    assert (spec.split, spec.weight, spec.incomplete) == ("val", 0.5, True)
    assert not open_training_sources([spec])[0].complete
    assert open_training_sources([replace(spec, incomplete=False)])[0].complete


def test_incomplete_annotations_without_expressions_are_refused(tmp_path: Path) -> None:
    root = write_painted_images(tmp_path / "set", complete=False)
    with pytest.raises(InputError, match="neither narratives nor expressions"):
        Source(root, "val")
    with pytest.raises(InputError, match="neither narratives nor expressions"):
        open_narratives_of([DataSpec(root)])
    assert main(["data", "narrate", str(root), "-o", str(tmp_path / "out.json")]) == 2


def test_what_is_said_to_be_incomplete_is_narrated_by_expressions_alone(tmp_path: Path) -> None:
    root = write_painted_images(tmp_path / "set", segment={"expressions": ["it"]}, complete=True)
    assert main(["data", "narrate", f"{root},incomplete", "-o", str(tmp_path / "out.json")]) == 0
    (rows,) = open_narratives_of([DataSpec(root, incomplete=True)]).values()
    said = {n.caption[p.start : p.end] for n in rows for p in n.phrases}
    written = json.loads((tmp_path / "out.json").read_text())
    assert said == {part["utterance"] for n in written for part in n["segments"] if part["noun"]} == {"it"}


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    roots = [write_painted_images(tmp_path / folder / "set") for folder in ("a", "b")]
    with pytest.raises(InputError, match=r"two sources are called set:val, in .*a/set and in .*b/set"):
        open_training_sources([DataSpec(root) for root in roots])


def test_what_training_does_not_use_beside_narratives_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_painted_images(tmp_path / "set", segment={"expressions": ["it"]}, complete=True)
    file = root / "annotations/png_coco_val.json"
    assert main(["data", "narrate", str(root), "-o", str(file)]) == 0
    file.write_text(json.dumps(json.loads(file.read_text())[:1]))
    with caplog.at_level("WARNING", "ppmn"):
        source = Source(root, "val")
    count = len(read_panoptic(root, "val").images) - len(source)
    assert f"set:val: {count} images without narratives are not used" in caplog.messages
    assert any("expressions are not used beside narratives" in message for message in caplog.messages)


@pytest.mark.parametrize("expressions", ["left man", [1], {"a": "b"}])
def test_expressions_that_are_no_list_of_strings_are_refused(tmp_path: Path, expressions: object) -> None:
    root = write_painted_images(tmp_path / "set", segment={"expressions": expressions})
    with pytest.raises(InputError, match="not a list of strings"):
        read_panoptic(root, "val")
