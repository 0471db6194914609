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
from ppmn.synthetic.nouns import Lexicon, NounForm, Word

_NUMBER_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBERS = {w: n for n, w in enumerate(_NUMBER_WORDS, 1)}
_ORDER = ("first", "second", "third", "fourth", "fifth", "sixth")
_PLACE = r"(?:on|to|at|in) the (left|right|top|bottom|middle|center)\b(?: side)?"
_MODIFIER = re.compile(
    r"\b(on|in|riding|holding|wearing|beside|behind|near|(?<!consists )of)( the| a| an)? $", re.I
)
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
_HUE = "|".join(HUES)
_CHOICE = rf"({'|'.join(_ORDER)}|far left|far right|{_HUE})"
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
        if words[0] in ("a", "an", "his", "this") or (words[0] == "the" and phrase.start > 0):
            wrong.append(f"article in {words}")
        if not phrase.segment_ids:
            continue
        if words[:3] == ["one", "of", "the"]:
            words = words[3:]
        number = 2 if words[0] == "couple" else _NUMBERS.get(words[0])
        if number and (number != len(phrase.segment_ids) or crowds & set(phrase.segment_ids)):
            wrong.append(f"number in {words}")
        colors = [
            w for w in words if w in HUES and not {"in", "wearing", "with"} & set(words[: words.index(w)])
        ]
        fruit = re.search(r"oranges?(?= (?:on|at|in|to|from|next|near|by|beside) |$)", " ".join(words))
        if colors and not fruit:
            mask = np.isin(ids, phrase.segment_ids)
            hsv = np.asarray(Image.fromarray(pixels).convert("HSV"))[mask].astype(float) / 255
            fractions = [HUES[c](hsv[:, 0] * 360, hsv[:, 1], hsv[:, 2]).mean() for c in colors]
            if min(fractions) < (0.58 if len(colors) == 1 else 0.2):
                wrong.append(f"color in {words}: {fractions}")
    return wrong + false_places(generated, image, ids) + false_choices(generated, image, ids)


def false_places(generated: GeneratedCaption, image: PanopticImage, ids: np.ndarray) -> list[str]:
    """A place in a noun phrase or after it is said of it, one at the start of a sentence of all its nouns."""
    wrong = []
    for sentence in re.finditer(r"[^.]+\.?", generated.caption):
        nouns = [
            p
            for p in generated.phrases
            if p.segment_ids
            and sentence.start() <= p.start < sentence.end()
            and not _MODIFIER.search(generated.caption[sentence.start() : p.start])
        ]
        for place in re.finditer(_PLACE, sentence.group(), re.I):
            start = sentence.start() + place.start()
            if any(p.absent and p.start <= start < p.end + 12 for p in generated.phrases):
                continue
            before = [p for p in nouns if p.start < start]
            for phrase in before[-1:] or nouns:
                word = place.group(1).lower()
                if not all(is_at(word, id, phrase.segment_ids, image, ids) for id in phrase.segment_ids):
                    text = generated.caption[phrase.start : phrase.end]
                    wrong.append(f"place of {text} {word}")
    return wrong


def mean_position(ids: np.ndarray, id: int) -> tuple[float, float]:
    """The center of a segment as fractions of width and height."""
    rows, columns = np.nonzero(ids == id)
    return (columns.mean() + 0.5) / ids.shape[1], (rows.mean() + 0.5) / ids.shape[0]


def others_of_its_kind(image: PanopticImage, ids: np.ndarray, members: tuple[int, ...]) -> list[int]:
    """The visible segments of the same category that are not meant."""
    category = {s.id: s.category_id for s in image.segments}
    kind = {category[m] for m in members}
    return [
        s.id for s in image.segments if s.category_id in kind and s.id not in members and (ids == s.id).any()
    ]


def is_at(
    word: str, id: int, members: tuple[int, ...], image: PanopticImage, ids: np.ndarray, strict: bool = False
) -> bool:
    """Whether a segment is at that place of the image, or the outermost of its kind on that side."""
    x, y = mean_position(ids, id)
    others = [mean_position(ids, other) for other in others_of_its_kind(image, ids, members)]
    horizontal, sign = word in ("left", "right"), 1 if word in ("left", "top") else -1
    if word in ("middle", "center"):
        between = len(others) == 2 and min(o[0] for o in others) < x < max(o[0] for o in others)
        return between or (0.3 < x < 0.7 and 0.3 < y < 0.7)
    own = x if horizontal else y
    absolute = sign * (own - 0.5) < -0.1
    theirs = [o[0] if horizontal else o[1] for o in others]
    outermost = bool(theirs) and all(sign * (own - other) < -0.1 for other in theirs)
    return outermost or (absolute and not strict)


def false_choices(generated: GeneratedCaption, image: PanopticImage, ids: np.ndarray) -> list[str]:
    """Words in a noun phrase that tell it from others of its kind, and are not true of it alone."""
    wrong = []
    area = {s.id: int((ids == s.id).sum()) for s in image.segments}
    for phrase in generated.phrases:
        text = generated.caption[phrase.start : phrase.end].lower()
        members = phrase.segment_ids
        if not members:
            continue
        others = others_of_its_kind(image, ids, members)
        after = generated.caption[phrase.end :].lower()
        order = re.search(
            r"\b(first|second|third|fourth|fifth|sixth)\b.*? from (?:the )?(left|right)", text + after[:16]
        )
        if order and order[1] in text:
            sign = 1 if order[2] == "left" else -1
            own = mean_position(ids, members[0])[0]
            rank = sum(sign * (mean_position(ids, o)[0] - own) < 0 for o in others)
            if _ORDER.index(order[1]) != rank:
                wrong.append(f"order in {text}: {rank}")
        elif side := re.match(
            r"(?:the )?(?:far )?(left|right|top|bottom|upper|lower)(?:most)? (?!left|right)", text
        ):
            word = {"upper": "top", "lower": "bottom"}.get(side[1], side[1])
            if not is_at(word, members[0], members, image, ids, strict=True):
                wrong.append(f"side in {text}")
        sizes = [area[o] for o in others]
        if re.match(r"(?:the )?(bigg|larg)e(r|st)", text) and area[members[0]] < 1.9 * max(sizes):
            wrong.append(f"size in {text}")
        if re.match(r"(?:the )?smalle(r|st)", text) and 1.9 * area[members[0]] > min(sizes):
            wrong.append(f"size in {text}")
        if re.match(r"both|all", text) and (others or (text[0] == "b" and len(members) != 2)):
            wrong.append(f"number in {text}")
    return wrong


def false_absences(
    generated: GeneratedCaption, lexicon: Lexicon, image: PanopticImage, ids: np.ndarray
) -> list[str]:
    """Absent phrases that name something which is there, by their nouns, order and place."""
    wrong = []
    for phrase in generated.phrases:
        if not phrase.absent:
            continue
        text = generated.caption[phrase.start : phrase.end].lower()
        after = generated.caption[phrase.end :].lower()[:24]
        noun = re.sub(rf"^(the|few|some|many|group of|number of|a) |^(the )?{_CHOICE} ", "", text)
        noun = re.sub(r" (on|to|at|from) .*", "", noun)
        kinds = lexicon.category_ids(Word(noun, NounForm.SINGULAR))
        present = [s for s in image.segments if s.category_id in kinds and (ids == s.id).any()]
        order = re.search(r"(first|second|third|fourth|fifth|sixth)\b", text)
        side = re.search(r"\b(left|right)\b", text + after)
        if order:
            true = len(present) <= _ORDER.index(order[1])
        elif present and (color := re.match(rf"(?:the )?({_HUE}) ", text)):
            true = color[1] not in ("white", "black", "grey", "brown")
        elif present and side:
            sign = 1 if side[1] == "left" else -1
            true = all(sign * (mean_position(ids, s.id)[0] - 0.5) > 0.1 for s in present)
        else:
            true = not present
        if not true:
            wrong.append(f"absent {text}{after}")
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
