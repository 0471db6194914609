"""Panoptic annotations -> narratives in the manner of Localized Narratives.

`Narrator` works on arrays in memory, so that training can flip, crop or paste first and narrate
what is then there. The same (seed, epoch, index) gives the same narrative.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ppmn.data.narratives import AnnotatedPhrase
from ppmn.data.panoptic import Category, PanopticImage, read_panoptic, splits
from ppmn.errors import InputError
from ppmn.files import replacing
from ppmn.images import read_image
from ppmn.synthetic.mentions import Mentioner
from ppmn.synthetic.nouns import Lexicon
from ppmn.synthetic.regions import PLACES, regions
from ppmn.synthetic.wording import MANNER, Mention, Noun, Piece, unfold

GROUNDED, SPREAD = 5.6, 2.0  # grounded nouns a narrative is planned with; some photos have fewer
FRAMES, SEEING, OPENINGS, PLAIN = (MANNER[k] for k in ("frames", "seeing", "openings", "plain"))
PLACE: dict[str, list[str]] = MANNER["place"]
ASIDES, AGAIN = MANNER["asides"], MANNER["again"]


@dataclass(frozen=True)
class Narrated:
    """A narrative; `phrases` are all its noun phrases, also those that point to nothing."""

    caption: str
    phrases: tuple[AnnotatedPhrase, ...]


def joined(told: Sequence[Narrated]) -> Narrated:
    """Narratives of one photo as one, the phrases where they then stand."""
    caption, phrases = "", []
    for one in told:
        at = len(caption) + bool(caption)
        caption = f"{caption} {one.caption}" if caption else one.caption
        phrases += [replace(p, start=p.start + at, end=p.end + at) for p in one.phrases]
    return Narrated(caption, tuple(phrases))


def rng_for(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The one source of chance for item `index` in `epoch`."""
    return np.random.default_rng((seed, epoch, index))


class Narrator:
    """Tells photos of one source: `Narrator(panoptic.categories)(image, ids, pixels, rng)`."""

    def __init__(self, categories: Mapping[int, Category], grounded: float = GROUNDED) -> None:
        self.lexicon = Lexicon(categories)
        self.grounded = grounded

    def __call__(
        self,
        image: PanopticImage,
        ids: NDArray[np.int32],
        pixels: NDArray[np.uint8] | None,
        rng: np.random.Generator,
        absent: int = 0,
        present_only: bool = False,
    ) -> Narrated:
        """Narrate the segments that have pixels in `ids` (H, W); colours need `pixels` (H, W, 3).

        `absent` asks for that many phrases of categories that are annotated in the source and not
        in the photo. `present_only` says that the annotation is not complete: then, as for
        segments with a teacher's `score`, there are none of these, and no words for several
        categories at once.
        """
        exhaustive = not present_only and all(s.score is None for s in image.segments)
        here = regions(image, self.lexicon.categories, ids, pixels)
        mentioner = Mentioner(self.lexicon, here, rng, exhaustive)
        mentions = _choose(mentioner, rng.normal(self.grounded, SPREAD))
        extra = [mentioner.absent() for _ in range(absent if exhaustive else 0)]
        return _write(mentioner, mentions, [m for m in extra if m])


def _choose(mentioner: Mentioner, target: float) -> list[Mention]:
    """Mentions, the salient first, until the planned number of grounded nouns is reached."""
    rng = mentioner.rng
    chosen: list[Mention] = mentioner.wider() if mentioner.chance(0.25) else []
    said = {i for m in chosen for n in m.nouns for i in n.ids}
    keys = {}
    for id, here in mentioner.of.items():
        share = sum(r.share for r in here)
        weight = share**0.5 + 0.1 * here[0].category.isthing
        keys[id] = rng.exponential() / (weight if share > 5e-4 else weight / 10)
    for id in sorted(keys, key=keys.__getitem__):
        if sum(len(n.ids) > 0 for m in chosen for n in m.nouns) >= max(target, 1):
            break
        if all(r.id in said for r in mentioner.of[id]):
            continue
        chosen += mentioner.category(id)
        said |= {i for m in chosen for n in m.nouns for i in n.ids}
    return chosen


def _write(mentioner: Mentioner, mentions: list[Mention], absent: list[Mention]) -> Narrated:
    """Sentences from the front of the photo to its back."""
    frame, seeing = mentioner.one_of(FRAMES), mentioner.one_of(SEEING)
    voice = _Voice(mentioner, frame, seeing)
    placed: dict[str, list[Mention]] = {p: [] for p in ("", *PLACES, "front", "back")}
    for mention in mentions:
        placed[voice.place(mention)].append(mention)
    for mention in absent:
        placed[mentioner.one_of(("", "back", "front"))].append(mention)
    if mentioner.chance(0.5):
        placed[mentioner.one_of([p for p in ("", "front", "back") if placed[p]] or [""])].append(
            mentioner.other()
        )
    sentences = []
    if not placed[""] and (not mentions or mentioner.chance(0.3)):
        sentences.append(voice.fill("This is a [F]." if frame != "image" else "This is an [F]."))
    middle = [p for p in (*PLACES, "front") if placed[p]]
    order = ["", *(middle[int(i)] for i in mentioner.rng.permutation(len(middle))), "back"]
    for place in order:
        while placed[place]:
            take = int(mentioner.rng.integers(2, 7))
            sentences.append(voice.sentence(place, placed[place][:take], first=not sentences))
            placed[place] = placed[place][take:]
    for mention in mentions:
        noun = mentioner.again(mention)
        if noun and mentioner.chance(0.1 + 0.6 * (len(mentions) < 3)):
            sentences.append(voice.fill(mentioner.one_of(AGAIN), noun))
    if mentioner.chance(0.4):
        aside = mentioner.one_of([a for a in ASIDES if mentioner.outdoors or not a.startswith("~")])
        sentences.append(voice.fill(aside.removeprefix("~")))
    return render(_first_is_one([p for s in sentences for p in s]))


def _first_is_one(pieces: list[Piece]) -> list[Piece]:
    """`another man` before any man is `one man`."""
    heard: set[str] = set()
    for n, piece in enumerate(pieces):
        if isinstance(piece, Noun) and piece.ids:
            head = piece.text.removeprefix("another ")
            if head != piece.text and head not in heard:
                pieces[n] = replace(piece, text=f"one {head}")
            heard.add(head)
    return pieces


@dataclass
class _Voice:
    """One speaker: the same frame and verb through most of a narrative."""

    mentioner: Mentioner
    frame: str
    seeing: str

    def place(self, mention: Mention) -> str:
        """Where in the narrative it comes; `""` is the opening, places must hold."""
        chance = self.mentioner.chance
        if mention.must:
            return mention.must if chance(0.6) else ""
        if mention.back and chance(0.6):
            return "top" if "top" in mention.places and chance(0.35) else "back"
        if mention.places and chance(0.35):
            return self.mentioner.one_of(sorted(mention.places))
        return "back" if chance(0.12) else "front" if "bottom" in mention.places and chance(0.3) else ""

    def fill(self, template: str, noun: Noun | None = None) -> tuple[Piece, ...]:
        """A template's pieces; nouns that the source annotates are kept out."""
        before, at, after = template.replace("[F]", f"[{self.frame}]").partition("@")
        pieces = (*unfold(before), *((noun,) if noun and at else ()), *unfold(after))
        kept = [p for p in pieces if p is noun or not self.mentioner.known(p)]
        return pieces if len(kept) == len(pieces) else ()

    def sentence(self, place: str, mentions: list[Mention], first: bool) -> tuple[Piece, ...]:
        m = self.mentioner
        if place:
            opening = m.one_of(PLACE[place])
            if first and m.chance(0.4):
                opening = f"In this [{self.frame}] {opening[0].lower()}{opening[1:]}"
        else:
            opening = m.one_of(OPENINGS) if first or m.chance(0.1) else m.one_of(PLAIN)
        if first and not place and m.chance(0.06):
            opening, seeing = "This [F]", "consists of"
        else:
            seeing = self.seeing if m.chance(0.75) else m.one_of(SEEING)
        if seeing == "there":
            seeing = "there are" if mentions[0].plural else "there is"
        elif opening in ("", "and", "also") and not first and m.chance(0.2):
            seeing = seeing.replace("can ", "can also ")
        items = [self.item(mention, place) for mention in mentions]
        return (*unfold(opening.replace("[F]", f"[{self.frame}]")), seeing, *self.join(items), ".")

    def item(self, mention: Mention, place: str) -> tuple[Piece, ...]:
        """The mention, with its place after it where the sentence does not say it."""
        m = self.mentioner
        said = mention.must if mention.must and mention.must != place else ""
        if not said and not place and mention.places and m.chance(0.15):
            said = m.one_of(sorted(mention.places))
        if not said:
            return mention.pieces
        where = m.one_of(PLACE[said]).rstrip(",").replace("[F]", f"[{self.frame}]")
        return (*mention.pieces, *unfold(where[0].lower() + where[1:]))

    def join(self, items: list[tuple[Piece, ...]]) -> tuple[Piece, ...]:
        """`a, b and c`, or `a and b and c`."""
        comma = "," if self.mentioner.chance(0.85) else "and"
        joined: list[Piece] = list(items[0])
        for n, item in enumerate(items[1:], 2):
            joined += ["and" if n == len(items) else comma, *item]
        return tuple(joined)


def render(pieces: list[Piece]) -> Narrated:
    """Join pieces to a caption and note where each noun stands."""
    caption, phrases = "", []
    for piece in pieces:
        text = piece.text if isinstance(piece, Noun) else piece
        if caption and not re.match(r"[.,]", text):
            caption += " "
        if not caption or caption.endswith(". "):
            text = text[0].upper() + text[1:]
        if isinstance(piece, Noun):
            end = len(caption) + len(text)
            phrases.append(AnnotatedPhrase(len(caption), end, piece.ids, piece.isthing, piece.absent))
        caption += text
    return Narrated(caption, tuple(phrases))


def png_entry(image_id: int, narrated: Narrated) -> dict[str, Any]:
    """The narrative as `png_coco_<split>.json` has it: utterances that cover the caption."""
    parts: list[tuple[str, AnnotatedPhrase | None]] = []
    at = 0
    for phrase in narrated.phrases:
        parts.append((narrated.caption[at : phrase.start], None))
        parts.append((narrated.caption[phrase.start : phrase.end], phrase))
        at = phrase.end
    parts.append((narrated.caption[at:], None))
    segments = [
        {
            "utterance": text.strip(),
            "segment_ids": [str(i) for i in phrase.segment_ids] if phrase else [],
            "plural": bool(phrase and phrase.plural),
            "noun": phrase is not None,
        }
        | ({"absent": True} if phrase and phrase.absent else {})
        for text, phrase in parts
        if text.strip()
    ]
    return {"image_id": str(image_id), "annotator_id": 0, "caption": narrated.caption, "segments": segments}


def narrate_split(
    root: Path, split: str | None, out: Path, seed: int = 0, epoch: int = 0, absent: int = 0
) -> tuple[int, int, int]:
    """One narrative a photo in PNG form; returns how many narratives, noun phrases and grounded ones."""
    if split is None:
        found = splits(root)
        if len(found) != 1:
            raise InputError(f"{root} has the splits {', '.join(found)}: name one as {root}:SPLIT")
        split = found[0]
    panoptic = read_panoptic(root, split)
    narrator, entries, phrases, grounded = Narrator(panoptic.categories), [], 0, 0
    for index, image in enumerate(tqdm(panoptic.images, unit="photo", desc=f"{root.name}:{split}")):
        pixels, ids = np.asarray(read_image(image.file)), image.ids()
        if pixels.shape[:2] != ids.shape:
            sizes = f"{pixels.shape[1]}x{pixels.shape[0]}, its segmentation {ids.shape[1]}x{ids.shape[0]}"
            raise InputError(f"{image.file} is {sizes}: they must be of one size")
        told = narrator(image, ids, pixels, rng_for(seed, epoch, index), absent)
        entries.append(png_entry(image.id, told))
        phrases += len(told.phrases)
        grounded += sum(bool(p.segment_ids) for p in told.phrases)
    write_json(out, entries)
    return len(entries), phrases, grounded


def write_json(file: Path, content: Any) -> None:
    """Whole or not at all."""
    with replacing(file) as part:
        part.write_text(json.dumps(content), encoding="utf-8")
