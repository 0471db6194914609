"""Painted images for the narrator, and a check that captions are true of masks and pixels."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from ppmn.data.panoptic import Category, PanopticImage, Segment
from ppmn.images import ids_to_rgb
from ppmn.synthetic.captions import GeneratedCaption

_NUMBER_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBERS = {w: n for n, w in enumerate(_NUMBER_WORDS, 1)}
_PLACE = r"(?:on|to|at|in) the (left|right|top|bottom|middle|center)\b(?: side)?"
_MODIFIER = re.compile(r"\b(on|in|riding|holding|beside|behind|near|(?<!consists )of)( the| a| an)? $", re.I)
HUES = {  # looser than the narrator's own limits: hue in degrees, saturation, value
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
_PAINT = {
    5: (90, 150, 230),
    6: (60, 150, 50),
    1: (230, 200, 190),
    3: (210, 30, 30),
    4: (240, 240, 240),
    7: (20, 20, 20),
}


def false_claims(
    generated: GeneratedCaption, image: PanopticImage, ids: np.ndarray, pixels: np.ndarray
) -> list[str]:
    """What a caption says that is not true, by its text, the segment ids and the pixels alone."""
    crowds = {s.id for s in image.segments if s.iscrowd}
    wrong = []
    for phrase in generated.phrases:
        words = generated.caption[phrase.start : phrase.end].lower().split()
        if words[0] in ("a", "an", "the", "his", "this"):
            wrong.append(f"article in {words}")
        if not phrase.segment_ids:
            continue
        number = 2 if words[0] == "couple" else _NUMBERS.get(words[0])
        if number and (number != len(phrase.segment_ids) or crowds & set(phrase.segment_ids)):
            wrong.append(f"number in {words}")
        colors = [w for w in words if w in HUES]
        if colors and words[-1] != "orange":
            mask = np.isin(ids, phrase.segment_ids)
            hsv = np.asarray(Image.fromarray(pixels).convert("HSV"))[mask].astype(float) / 255
            fractions = [HUES[c](hsv[:, 0] * 360, hsv[:, 1], hsv[:, 2]).mean() for c in colors]
            if min(fractions) < (0.58 if len(colors) == 1 else 0.2):
                wrong.append(f"color in {words}: {fractions}")
    return wrong + false_places(generated, ids)


def false_places(generated: GeneratedCaption, ids: np.ndarray) -> list[str]:
    """A place at the start of a sentence is said of its nouns, one after a noun of that noun."""
    wrong = []
    for sentence in re.finditer(r"[^.]+\.", generated.caption):
        nouns = [
            p
            for p in generated.phrases
            if p.segment_ids
            and sentence.start() <= p.start < sentence.end()
            and not _MODIFIER.search(generated.caption[sentence.start() : p.start])
        ]
        for place in re.finditer(_PLACE, sentence.group(), re.I):
            start = sentence.start() + place.start()
            before = [p for p in nouns if p.end < start]
            for phrase in before[-1:] or nouns:
                for id in phrase.segment_ids:
                    rows, columns = np.nonzero(ids == id)
                    y, x = (rows.mean() + 0.5) / ids.shape[0], (columns.mean() + 0.5) / ids.shape[1]
                    word = place.group(1).lower()
                    true = {"left": x < 0.4, "right": x > 0.6, "top": y < 0.4, "bottom": y > 0.6}
                    if not true.get(word, 0.3 < x < 0.7 and 0.3 < y < 0.7):
                        text = generated.caption[phrase.start : phrase.end]
                        wrong.append(f"place of {text} {word}: {x:.2f} {y:.2f}")
    return wrong


def painted_image(seed: int) -> tuple[PanopticImage, np.ndarray, np.ndarray]:
    """Sky over grass, and rectangles of things, among them cars of different colors."""
    rng = np.random.default_rng(seed)
    ids = np.full((96, 128), 1, np.int32)
    ids[50:] = 9_000_002
    pixels = np.where(ids[..., None] == 1, _PAINT[5], _PAINT[6]).astype(np.uint8)
    categories = {1: 5, 9_000_002: 6}
    for n in range(int(rng.integers(1, 9))):
        category = int(rng.choice([1, 1, 2, 2, 2, 3, 4, 7]))
        y, x = int(rng.integers(10, 70)), int(rng.integers(0, 100))
        box = np.s_[y : y + int(rng.integers(12, 26)), x : x + int(rng.integers(12, 28))]
        ids[box] = 500 + 70_000 * n
        pixels[box] = _PAINT.get(category, ((250, 220, 30), (20, 20, 200))[n % 2])
        categories[500 + 70_000 * n] = category
    segments = tuple(
        Segment(i, c, int((ids == i).sum()), (0, 0, 1, 1), iscrowd=c == 1 and seed % 3 == 0)
        for i, c in categories.items()
    )
    return PanopticImage(seed, Path("image.jpg"), Path("ids.png"), 96, 128, segments), ids, pixels


def describe(image: PanopticImage) -> PanopticImage:
    """The image with two expressions for every segment."""
    segments = (replace(s, expressions=(f"left one {s.id}", f"thing {s.id}")) for s in image.segments)
    return replace(image, segments=tuple(segments))


def write_painted_images(
    root: Path, count: int = 4, segment: Mapping[str, object] | None = None, **fields: object
) -> Path:
    """A data set of painted images, split `val`, with further fields of each segment and of the file."""
    images, annotations = [], []
    for folder in ("images/val", "annotations/panoptic_segmentation/val"):
        (root / folder).mkdir(parents=True)
    for seed in range(count):
        image, ids, pixels = painted_image(seed)
        Image.fromarray(pixels).save(root / f"images/val/{seed}.png")
        Image.fromarray(ids_to_rgb(ids)).save(root / f"annotations/panoptic_segmentation/val/{seed}.png")
        images.append({"id": seed, "file_name": f"{seed}.png", "height": 96, "width": 128})
        info = [
            {
                "id": s.id,
                "category_id": s.category_id,
                "area": s.area,
                "bbox": s.bbox,
                "iscrowd": int(s.iscrowd),
                **(segment or {}),
            }
            for s in image.segments
            if s.area
        ]
        annotations.append({"image_id": seed, "file_name": f"{seed}.png", "segments_info": info})
    categories = [{"id": c.id, "name": c.name, "isthing": int(c.isthing)} for c in CATEGORIES.values()]
    content = {"images": images, "annotations": annotations, "categories": categories, **fields}
    (root / "annotations/panoptic_val.json").write_text(json.dumps(content))
    return root
