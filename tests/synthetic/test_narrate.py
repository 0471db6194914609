"""Narratives made from panoptic annotations: what they say must hold on masks and pixels."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppmn.cli import main
from ppmn.data.panoptic import Category, PanopticImage, Segment, read_panoptic, splits
from ppmn.images import read_image
from ppmn.synthetic.narrator import Narrated, Narrator, rng_for
from ppmn.synthetic.nouns import MANY, Lexicon, plain

NUMBER_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBERS = {w: n for n, w in enumerate(NUMBER_WORDS, 1)}
PLACE = r"(?:on|to|at|in) the (left|right|top|bottom|middle|center)\b(?: side)?"
BESIDE = re.compile(r"\b(on|in|riding|holding|beside|behind|near|(?<!consists )of)( the| a| an)? $", re.I)
HUES = {  # looser than what the narrator asks for: hue in degrees, saturation, value
    "white": lambda h, s, v: (s < 0.2) & (v > 0.7),
    "black": lambda h, s, v: v < 0.34,
    "grey": lambda h, s, v: (s < 0.2) & (v > 0.24) & (v < 0.8),
    "red": lambda h, s, v: ((h < 18) | (h > 332)) & (s > 0.45),
    "orange": lambda h, s, v: (h > 10) & (h < 48) & (s > 0.5),
    "yellow": lambda h, s, v: (h > 40) & (h < 70) & (s > 0.38),
    "green": lambda h, s, v: (h > 58) & (h < 172) & (s > 0.12),
    "blue": lambda h, s, v: (h > 180) & (h < 262) & (s > 0.14),
    "purple": lambda h, s, v: (h > 250) & (h < 310) & (s > 0.15),
    "pink": lambda h, s, v: ((h > 290) | (h < 18)) & (s > 0.12) & (v > 0.5),
    "brown": lambda h, s, v: (h < 50) & (s > 0.22) & (v < 0.7),
}


def untrue(told: Narrated, image: PanopticImage, ids: np.ndarray, pixels: np.ndarray) -> list[str]:
    """What in a narrative does not hold, read off its text, the id map and the photo alone."""
    crowd = {s.id for s in image.segments if s.iscrowd}
    wrong = []
    for phrase in told.phrases:
        words = told.caption[phrase.start : phrase.end].lower().split()
        if words[0] in ("a", "an", "the", "his", "this"):
            wrong.append(f"article in {words}")
        if not phrase.segment_ids:
            continue
        number = 2 if words[0] == "couple" else NUMBERS.get(words[0])
        if number and (number != len(phrase.segment_ids) or crowd & set(phrase.segment_ids)):
            wrong.append(f"number in {words}")
        colours = [w for w in words if w in HUES]
        if colours and words[-1] != "orange":
            mask = np.isin(ids, phrase.segment_ids)
            hsv = np.asarray(Image.fromarray(pixels).convert("HSV"))[mask].astype(float) / 255
            shares = [HUES[c](hsv[:, 0] * 360, hsv[:, 1], hsv[:, 2]).mean() for c in colours]
            if min(shares) < (0.58 if len(colours) == 1 else 0.2):
                wrong.append(f"colour in {words}: {shares}")
    return wrong + misplaced(told, ids)


def misplaced(told: Narrated, ids: np.ndarray) -> list[str]:
    """A place at a sentence's beginning is said of its nouns, one after a noun of that noun."""
    wrong = []
    for sentence in re.finditer(r"[^.]+\.", told.caption):
        nouns = [
            p
            for p in told.phrases
            if p.segment_ids
            and sentence.start() <= p.start < sentence.end()
            and not BESIDE.search(told.caption[sentence.start() : p.start])
        ]
        for place in re.finditer(PLACE, sentence.group(), re.I):
            at = sentence.start() + place.start()
            before = [p for p in nouns if p.end < at]
            for phrase in before[-1:] or nouns:
                for id in phrase.segment_ids:
                    rows, columns = np.nonzero(ids == id)
                    y, x = (rows.mean() + 0.5) / ids.shape[0], (columns.mean() + 0.5) / ids.shape[1]
                    word = place.group(1).lower()
                    held = {"left": x < 0.4, "right": x > 0.6, "top": y < 0.4, "bottom": y > 0.6}
                    if not held.get(word, 0.3 < x < 0.7 and 0.3 < y < 0.7):
                        wrong.append(f"{told.caption[phrase.start : phrase.end]} {word}: {x:.2f} {y:.2f}")
    return wrong


CATEGORIES = {
    c.id: c
    for c in (
        Category(1, "person", True),
        Category(2, "car", True),
        Category(3, "bus", True),
        Category(4, "truck", True),
        Category(5, "sky-other-merged", False),
        Category(6, "grass-merged", False),
        Category(7, "snorkel_gadget", True, ("snorkel",)),
        Category(8, "giraffe", True),
    )
}
PAINT = {
    5: (90, 150, 230),
    6: (60, 150, 50),
    1: (230, 200, 190),
    3: (210, 30, 30),
    4: (240, 240, 240),
    7: (20, 20, 20),
}


def made(seed: int) -> tuple[PanopticImage, np.ndarray, np.ndarray]:
    """Sky over grass, and rectangles of things, among them cars of different colours."""
    rng = np.random.default_rng(seed)
    ids = np.full((96, 128), 1, np.int32)
    ids[50:] = 9_000_002
    pixels = np.where(ids[..., None] == 1, PAINT[5], PAINT[6]).astype(np.uint8)
    kinds = {1: 5, 9_000_002: 6}
    for n in range(int(rng.integers(1, 9))):
        kind = int(rng.choice([1, 1, 2, 2, 2, 3, 4, 7]))
        y, x = int(rng.integers(10, 70)), int(rng.integers(0, 100))
        box = np.s_[y : y + int(rng.integers(12, 26)), x : x + int(rng.integers(12, 28))]
        ids[box], pixels[box] = 500 + 70_000 * n, PAINT.get(kind, ((250, 220, 30), (20, 20, 200))[n % 2])
        kinds[500 + 70_000 * n] = kind
    segments = tuple(
        Segment(i, c, int((ids == i).sum()), (0, 0, 1, 1), iscrowd=c == 1 and seed % 3 == 0)
        for i, c in kinds.items()
    )
    return PanopticImage(seed, Path("photo.jpg"), Path("ids.png"), 96, 128, segments), ids, pixels


@pytest.mark.parametrize("flip", [False, True])
def test_what_is_said_of_a_made_set_holds(flip: bool) -> None:
    narrator, said = Narrator(CATEGORIES), ""
    for seed in range(300):
        image, ids, pixels = made(seed)
        if flip:
            ids, pixels = np.ascontiguousarray(ids[:, ::-1]), np.ascontiguousarray(pixels[:, ::-1])
        told = narrator(image, ids, pixels, rng_for(0, 0, seed))
        assert not untrue(told, image, ids, pixels), told.caption
        known = {s.id for s in image.segments if (ids == s.id).any()}
        assert all(set(p.segment_ids) <= known for p in told.phrases)
        assert all(0 <= p.start < p.end <= len(told.caption) for p in told.phrases)
        said += " " + told.caption
    for word in (
        "two",
        "left",
        "top",
        "yellow",
        "vehicles",
        "people",
        "snorkel",
        "sky",
        "background",
        "another",
    ):
        assert f" {word}" in said, word


def test_the_checker_finds_what_is_wrong() -> None:
    narrator, found = Narrator(CATEGORIES), set()
    for seed in range(100):
        image, ids, pixels = made(seed)
        told = narrator(image, ids, pixels, rng_for(0, 0, seed))
        swapped = np.ascontiguousarray(255 - pixels)
        found |= {w.split()[0] for w in untrue(told, image, ids, swapped) if w.startswith("colour")}
        found |= {"place" for _ in misplaced(told, np.ascontiguousarray(ids[::-1, ::-1]))}
        fewer = re.sub(r"\b[Tt]wo\b", "six", told.caption)
        found |= {w.split()[0] for w in untrue(Narrated(fewer, told.phrases), image, ids, pixels)}
    assert found >= {"colour", "place", "number"}


def test_a_narrative_is_made_again_from_seed_epoch_and_index() -> None:
    narrator = Narrator(CATEGORIES)
    image, ids, pixels = made(4)
    first = narrator(image, ids, pixels, rng_for(3, 1, 7))
    assert first == narrator(image, ids, pixels, rng_for(3, 1, 7))
    assert len({narrator(image, ids, pixels, rng_for(3, e, 7)).caption for e in range(20)}) > 15


def test_absent_phrases_name_what_is_annotated_and_not_there() -> None:
    narrator = Narrator(CATEGORIES)
    names = {c.name: Lexicon({c.id: c}) for c in CATEGORIES.values()}
    for seed in range(60):
        image, ids, pixels = made(seed)
        told = narrator(image, ids, pixels, rng_for(0, 0, seed), absent=2)
        absent = [p for p in told.phrases if p.absent]
        assert len(absent) == 2 and not any(p.segment_ids for p in absent)
        here = {CATEGORIES[s.category_id].name for s in image.segments if (ids == s.id).any()}
        for phrase in absent:
            text = told.caption[phrase.start : phrase.end].lower()
            text = re.sub(r"^(few|some|many|group of|number of) ", "", text)
            assert [n for n, words in names.items() if words.knows(text)]
            assert not any(names[n].knows(text) for n in here)


def test_an_incomplete_annotation_gets_nothing_absent_and_no_wider_words() -> None:
    narrator, said = Narrator(CATEGORIES), ""
    for seed in range(80):
        image, ids, pixels = made(seed)
        scored = tuple(Segment(s.id, s.category_id, s.area, s.bbox, s.iscrowd, 0.9) for s in image.segments)
        teacher = PanopticImage(1, image.file, image.segmentation, 96, 128, scored)
        for one, only in ((teacher, False), (image, True)):
            told = narrator(one, ids, pixels, rng_for(0, 0, seed), absent=3, present_only=only)
            assert not any(p.absent for p in told.phrases)
            said += told.caption
    assert "vehicle" not in said


def test_without_pixels_no_colour_is_said() -> None:
    narrator = Narrator(CATEGORIES)
    for seed in range(40):
        image, ids, _ = made(seed)
        told = narrator(image, ids, None, rng_for(0, 0, seed))
        assert not {c for c in HUES if f" {c} " in told.caption} - {"orange"}


def test_an_empty_map_is_still_a_narrative() -> None:
    image, ids, pixels = made(1)
    told = Narrator(CATEGORIES)(image, np.zeros_like(ids), pixels, rng_for(0, 0, 0))
    assert told.caption and not any(p.segment_ids for p in told.phrases)


def test_words_of_a_category() -> None:
    assert (
        plain("sky-other-merged") == "sky"
        and plain("door-stuff") == "door"
        and plain("floor-wood") == "floor-wood"
    )
    lexicon = Lexicon(CATEGORIES)
    texts = {w.text for w in lexicon.words[7]}
    assert texts == {"snorkel gadget", "snorkel", "snorkel gadgets", "snorkels"}
    assert any(w.text == "people" and w.form == MANY for w in lexicon.words[1])
    assert lexicon.knows("vehicles") and not lexicon.knows("animals")


def write_set(root: Path, count: int = 4) -> Path:
    """A small data set in the official layout."""
    images, annotations = [], []
    for folder in ("images/val", "annotations/panoptic_segmentation/val"):
        (root / folder).mkdir(parents=True)
    for seed in range(count):
        image, ids, pixels = made(seed)
        Image.fromarray(pixels).save(root / f"images/val/{seed}.png")
        rgb = np.stack([ids % 256, ids // 256 % 256, ids // 65_536], -1).astype(np.uint8)
        Image.fromarray(rgb).save(root / f"annotations/panoptic_segmentation/val/{seed}.png")
        images.append({"id": seed, "file_name": f"{seed}.png", "height": 96, "width": 128})
        there = [s for s in image.segments if (ids == s.id).any()]
        info = [
            {
                "id": s.id,
                "category_id": s.category_id,
                "area": s.area,
                "bbox": s.bbox,
                "iscrowd": int(s.iscrowd),
            }
            for s in there
        ]
        annotations.append({"image_id": seed, "file_name": f"{seed}.png", "segments_info": info})
    categories = [{"id": c.id, "name": c.name, "isthing": int(c.isthing)} for c in CATEGORIES.values()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations/panoptic_val.json").write_text(json.dumps(content))
    return root


def test_the_command_writes_what_the_reader_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    from ppmn.data.index import open_narratives

    monkeypatch.setenv("PPMN_CACHE", str(tmp_path / "cache"))
    root = write_set(tmp_path / "set")
    file = root / "annotations" / "png_coco_val.json"
    assert (
        main(["data", "narrate", f"{root}:val", "-o", str(file), "--negative-phrases", "1", "--seed", "5"])
        == 0
    )
    assert "4 narratives" in capsys.readouterr().out
    panoptic = read_panoptic(root, "val")
    read = open_narratives(root, "val")
    narrator = Narrator(panoptic.categories)
    assert len(read) == 4 and read.problems == 0
    for n, image in enumerate(panoptic.images):
        told = narrator(image, image.ids(), np.asarray(read_image(image.file)), rng_for(5, 0, n), 1)
        assert read[n].caption == told.caption
        assert [(p.start, p.end, p.segment_ids, p.absent) for p in read[n].phrases] == [
            (p.start, p.end, p.segment_ids, p.absent) for p in told.phrases
        ]


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "set", 1)
    Image.new("RGB", (5, 5)).save(root / "images/val/0.png")
    assert main(["data", "narrate", str(root), "-o", str(tmp_path / "out.json")]) == 2
    assert "one size" in capsys.readouterr().err and not (tmp_path / "out.json").exists()
    assert main(["data", "narrate", str(tmp_path / "none"), "-o", str(tmp_path / "out.json")]) == 2


def check_photos(shared: Path, every: int) -> None:
    wrong, count = [], 0
    for folder in sorted((shared / "data" / "photos").iterdir()):
        for split in splits(folder):
            panoptic = read_panoptic(folder, split)
            narrator = Narrator(panoptic.categories)
            for n, image in enumerate(panoptic.images[::every]):
                ids, pixels = image.ids(), np.asarray(read_image(image.file))
                told = narrator(image, ids, pixels, rng_for(0, 0, n))
                wrong += [f"{folder.name} {image.id} {w}" for w in untrue(told, image, ids, pixels)]
                count += 1
    assert count and not wrong, f"{len(wrong)} in {count}: {wrong[:10]}"


def test_what_is_said_of_a_sample_of_photos_holds(shared: Path) -> None:
    check_photos(shared, 60)


@pytest.mark.soak
def test_what_is_said_of_all_photos_holds(shared: Path) -> None:
    check_photos(shared, 1)
