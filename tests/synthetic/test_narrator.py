"""Captions generated from panoptic annotations: what they say is true of masks and pixels."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.narration import (
    CATEGORIES,
    HUES,
    false_absences,
    false_choices,
    false_claims,
    false_places,
    painted_image,
    write_painted_images,
)

from ppmn.cli import main
from ppmn.data.index import open_narratives
from ppmn.data.panoptic import read_panoptic, splits
from ppmn.images import read_image
from ppmn.synthetic.captions import GeneratedCaption
from ppmn.synthetic.narrator import Narrator, rng_for
from ppmn.synthetic.nouns import Lexicon, NounForm, base_name


@pytest.mark.parametrize("flip", [False, True])
def test_captions_are_true_of_painted_images(flip: bool) -> None:
    narrator, text = Narrator(CATEGORIES), ""
    for seed in range(300):
        image, ids, pixels = painted_image(seed)
        if flip:
            ids, pixels = np.ascontiguousarray(ids[:, ::-1]), np.ascontiguousarray(pixels[:, ::-1])
        visible = {s.id for s in image.segments if (ids == s.id).any()}
        for generated in narrator.captions(image, ids, pixels, rng_for(0, 0, seed), negative_phrases=2):
            assert not false_claims(generated, image, ids, pixels), generated.caption
            assert not false_absences(generated, narrator.lexicon, image, ids), generated.caption
            assert all(set(p.segment_ids) <= visible for p in generated.phrases)
            assert all(0 <= p.start < p.end <= len(generated.caption) for p in generated.phrases)
            text += " " + generated.caption
    words = (
        "two left top yellow vehicles people snorkel sky background another both men leftmost second smaller"
    )
    assert not [word for word in words.split() if f" {word}" not in text]


def test_false_claims_are_found() -> None:
    narrator, found = Narrator(CATEGORIES), set()
    for seed in range(100):
        image, ids, pixels = painted_image(seed)
        generated = narrator(image, ids, pixels, rng_for(0, 0, seed))
        inverted = np.ascontiguousarray(255 - pixels)
        six = GeneratedCaption(re.sub(r"\b[Tt]wo\b", "six", generated.caption), generated.phrases)
        wrong = false_claims(generated, image, ids, inverted)
        wrong += false_places(generated, image, np.ascontiguousarray(ids[::-1, ::-1]))
        wrong += false_claims(six, image, ids, pixels)
        for request in narrator.captions(image, ids, pixels, rng_for(0, 0, seed))[1:]:
            other = GeneratedCaption(re.sub("larg|bigg", "small", request.caption), request.phrases)
            wrong += false_choices(request, image, np.ascontiguousarray(ids[::-1, ::-1]))
            wrong += false_choices(other, image, ids)
        found |= {claim.split()[0] for claim in wrong}
    assert found >= {"color", "place", "number", "order", "side", "size"}


def test_seed_epoch_and_index_determine_a_caption() -> None:
    narrator = Narrator(CATEGORIES)
    image, ids, pixels = painted_image(4)
    first = narrator(image, ids, pixels, rng_for(3, 1, 7))
    assert first == narrator(image, ids, pixels, rng_for(3, 1, 7))
    assert len({narrator(image, ids, pixels, rng_for(3, e, 7)).caption for e in range(20)}) > 15


def test_random_streams_are_stable() -> None:
    image, ids, pixels = painted_image(4)
    generated = Narrator(CATEGORIES)(image, ids, pixels, rng_for(3, 1, 7), negative_phrases=1)
    assert generated.caption == (
        "Here there is green grass and the second snorkel from the right side and the blue sky and a car in "
        "the middle of the picture and trucks. At the bottom of the picture we can see a snorkel gadget. In "
        "front of the picture I can see a kid. The kid can be seen with few objects around."
    )


def test_negative_phrases_name_what_is_not_in_the_image() -> None:
    narrator, texts = Narrator(CATEGORIES), set()
    for seed in range(150):
        image, ids, pixels = painted_image(seed)
        generated = narrator(image, ids, pixels, rng_for(0, 0, seed), negative_phrases=2)
        absent = [p for p in generated.phrases if p.absent]
        assert len(absent) == 2 and not any(p.segment_ids for p in absent)
        assert not false_absences(generated, narrator.lexicon, image, ids), generated.caption
        texts |= {generated.caption[p.start : p.end].lower() for p in absent}
    assert any("from" in t for t in texts) and any("giraffe" in t for t in texts)
    assert any(t.endswith("on the left") for t in texts) and any(t.startswith("purple") for t in texts)


def test_false_absences_are_found() -> None:
    narrator, found = Narrator(CATEGORIES), 0
    for seed in range(60):
        image, ids, pixels = painted_image(seed)
        generated = narrator(image, ids, pixels, rng_for(0, 0, seed))
        wrong = [replace(p, segment_ids=(), absent=True) for p in generated.phrases if p.segment_ids]
        found += bool(false_absences(replace(generated, phrases=tuple(wrong)), narrator.lexicon, image, ids))
    assert found > 50


def test_no_colors_without_pixels() -> None:
    narrator = Narrator(CATEGORIES)
    for seed in range(40):
        image, ids, _ = painted_image(seed)
        generated = narrator(image, ids, None, rng_for(0, 0, seed))
        assert not {c for c in HUES if f" {c} " in generated.caption} - {"orange"}


def test_image_without_segments_gets_a_caption() -> None:
    image, ids, pixels = painted_image(1)
    generated = Narrator(CATEGORIES)(image, np.zeros_like(ids), pixels, rng_for(0, 0, 0))
    assert generated.caption and not any(p.segment_ids for p in generated.phrases)


def test_segment_that_is_listed_twice_gets_a_caption() -> None:
    image, ids, pixels = painted_image(1)
    image = replace(image, segments=(*image.segments, image.segments[0]))
    assert Narrator(CATEGORIES)(image, ids, pixels, rng_for(0, 0, 0)).caption


def test_nouns_of_a_category() -> None:
    names = ("sky-other-merged", "door-stuff", "floor-wood")
    assert [base_name(name) for name in names] == ["sky", "door", "floor-wood"]
    lexicon = Lexicon(CATEGORIES)
    texts = {w.text for w in lexicon.words[7]}
    assert texts == {"snorkel gadget", "snorkel", "snorkel gadgets", "snorkels"}
    assert any(w.text == "people" and w.form == NounForm.PLURAL for w in lexicon.words[1])
    assert lexicon.covers("vehicles") and not lexicon.covers("animals")


def narrate(root: Path, out: Path, *options: str) -> int | None:
    return main(["data", "narrate", str(root), "-o", str(out), *options])


def test_command_writes_narratives_that_the_reader_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_painted_images(tmp_path / "set")
    file = root / "annotations" / "png_coco_val.json"
    assert narrate(root, file, "--negative-phrases", "1", "--seed", "5") == 0
    assert "4 narratives" in capsys.readouterr().out
    panoptic = read_panoptic(root, "val")
    read = open_narratives(root, "val")
    narrator = Narrator(panoptic.categories)
    assert len(read) == 4 and read.problems == 0
    for n, image in enumerate(panoptic.images):
        pixels = np.asarray(read_image(image.file))
        generated = narrator(image, image.ids(), pixels, rng_for(5, 0, n), negative_phrases=1)
        assert read[n].caption == generated.caption
        assert [(p.start, p.end, p.segment_ids, p.absent) for p in read[n].phrases] == [
            (p.start, p.end, p.segment_ids, p.absent) for p in generated.phrases
        ]


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_painted_images(tmp_path / "set", 1)
    Image.new("RGB", (5, 5)).save(root / "images/val/0.png")
    assert narrate(root, tmp_path / "out.json") == 2
    assert "one size" in capsys.readouterr().err and not (tmp_path / "out.json").exists()
    assert narrate(tmp_path / "none", tmp_path / "out.json") == 2


def check_images(shared: Path, step: int) -> None:
    wrong, count = [], 0
    for folder in sorted((shared / "data" / "photos").iterdir()):
        for split in splits(folder):
            panoptic = read_panoptic(folder, split)
            narrator = Narrator(panoptic.categories, complete=panoptic.complete)
            for n, image in enumerate(panoptic.images[::step]):
                ids, pixels = image.ids(), np.asarray(read_image(image.file))
                for generated in narrator.captions(image, ids, pixels, rng_for(0, 0, n), negative_phrases=1):
                    claims = false_claims(generated, image, ids, pixels) if panoptic.complete else []
                    claims += false_absences(generated, narrator.lexicon, image, ids)
                    wrong += [f"{folder.name} {image.id} {claim}" for claim in claims]
                count += 1
    assert count and not wrong, f"{len(wrong)} in {count}: {wrong[:10]}"


def test_captions_are_true_of_some_photos(shared: Path) -> None:
    check_images(shared, 60)


@pytest.mark.soak
def test_captions_are_true_of_all_photos(shared: Path) -> None:
    check_images(shared, 1)
