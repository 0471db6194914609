"""Panoptic annotations -> narratives in the manner of Localized Narratives.

`Narrator` works on arrays in memory, so that training can flip, crop or paste first and narrate
what is then there. The same (seed, epoch, index) gives the same narrative.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppmn.data.mentions import Mention, Mentioner, Noun, Piece, unfold
from ppmn.data.panoptic import Category, PanopticImage
from ppmn.data.png import GroundedPhrase
from ppmn.data.regions import PLACES, regions
from ppmn.data.words import Lexicon

GROUNDED, SPREAD = 5.6, 2.0  # grounded nouns a narrative is planned with; some photos have fewer
FRAMES = ("image", "image", "image", "picture", "picture", "photo")
SEEING = ("we can see", "I can see", "there", "we can see", "I can see", "there", "we see", "I see", "we could see")
OPENINGS = (
    "In this [F]", "In this [F]", "In this [F],", "In the [F]", "In this [F]", "Here", "In the [F],",
)  # fmt: skip
PLAIN = ("and", "And", "", "also", "Also", "", "And also")
PLACE = {
    "left": ("On the [left side] of the [F]", "On the [left]", "On the [left side]", "On the [left side],",
             "On the [left],", "To the [left]"),
    "right": ("On the [right side] of the [F]", "On the [right]", "On the [right side]", "On the [right side],",
              "On the [right],", "To the [right]"),
    "top": ("At the [top] of the [F]", "At the [top]", "At the [top],", "On the [top] of the [F]"),
    "bottom": ("At the [bottom] of the [F]", "At the [bottom]", "At the [bottom],", "At the [bottom] of the [F],"),
    "middle": ("In the [middle] of the [F]", "In the [center] of the [F]", "In the [middle]", "In the [center],",
               "In the [middle],"),
    "back": ("In the [background]", "In the [background],", "In the [background] of the [F]", "In the [background]",
             "In the [background], in this [F],", "In the [backdrop],"),
    "front": ("In the [foreground]", "In the [foreground] of this [F],", "In the [front]", "In [front] of the [F]",
              "In the [foreground] of the [F]"),
}  # fmt: skip
ASIDES = (
    "There are [few objects] and [some other things].", "We can also see [some objects].",
    "This [F] is clicked outside.", "The [F] is taken in the [day time].", "It looks like a [view] of a [place].",
    "There is some [text] on the [F].", "I can also see [few other objects] in the [background].",
    "We can see a [watermark] at the [corner] of the [F].", "The [background] of the [F] is blurred.",
    "There are [few other items].", "We can see the [shadow] on the [surface].", "There is [light] in this [F].",
)  # fmt: skip
AGAIN = (
    "There is [some object] beside the @.", "Beside the @ there are [few things].",
    "Behind the @ we can see [some objects].", "In [front] of the @ there is an [object].",
    "The [reflection] of the @ is visible.", "We can see the @ clearly in this [F].", "Near the @ there is an [object].",
)  # fmt: skip


@dataclass(frozen=True)
class Narrated:
    """A narrative; `phrases` are all its noun phrases, also those that point to nothing."""

    caption: str
    phrases: tuple[GroundedPhrase, ...]


def rng_for(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The one source of chance for item `index` in `epoch`."""
    return np.random.default_rng((seed, epoch, index))


class Narrator:
    """Tells photos of one source: `Narrator(panoptic.categories)(image, ids, pixels, rng)`."""

    def __init__(self, categories: Mapping[int, Category]) -> None:
        self.lexicon = Lexicon(categories)

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
        mentions = _choose(mentioner)
        extra = [mentioner.absent() for _ in range(absent if exhaustive else 0)]
        return _write(mentioner, mentions, [m for m in extra if m])


def _choose(mentioner: Mentioner) -> list[Mention]:
    """Mentions, the salient first, until the planned number of grounded nouns is reached."""
    rng, target = mentioner.rng, mentioner.rng.normal(GROUNDED, SPREAD)
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
    sentences = []
    if not placed[""] and mentioner.chance(0.3):
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
        if noun and mentioner.chance(0.15 + 0.6 * (len(mentions) < 3)):
            sentences.append(voice.fill(mentioner.one_of(AGAIN), noun))
    if mentioner.chance(0.55):
        sentences.append(voice.fill(mentioner.one_of(ASIDES)))
    return render([p for s in sentences if s for p in s])


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
            phrases.append(GroundedPhrase(len(caption), end, piece.ids, piece.isthing, piece.absent))
        caption += text
    return Narrated(caption, tuple(phrases))
