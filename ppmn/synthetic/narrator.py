"""Panoptic annotations -> captions in the style of Localized Narratives.

`Narrator` works on arrays in memory, so that training can flip, crop or paste first and describe the
result. The same (seed, epoch, index) gives the same caption.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ppmn.data.panoptic import Category, PanopticImage
from ppmn.synthetic.captions import GeneratedCaption, render
from ppmn.synthetic.expressions import Expressions
from ppmn.synthetic.mentions import Mentioner
from ppmn.synthetic.nouns import Lexicon
from ppmn.synthetic.regions import SIDES, Region, find_regions
from ppmn.synthetic.requests import plain_nouns, requests
from ppmn.synthetic.templates import PLACES, TEMPLATES
from ppmn.synthetic.vocabulary import Vocabulary
from ppmn.synthetic.wording import (
    Mention,
    NounPhrase,
    Piece,
    Pieces,
    Wording,
    indefinite_article,
    parse_template,
)
from ppmn.types import SegmentIds

_MOSTLY_WRONG = 0.25  # of the narratives: those with several times as many negative phrases
_GROUNDED_MEAN, _GROUNDED_SPREAD = 5.6, 2.0  # planned grounded phrases per caption; some images have fewer


def rng_for(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random generator of item `index` in `epoch`."""
    return np.random.default_rng((seed, epoch, index))


class Narrator:
    """Captions for the images of one data set: `Narrator(panoptic.categories)(image, ids, pixels, rng)`.

    `complete` is the data set's own, see `Panoptic`: where it is not, only what people wrote of the
    segments is said. `grounded` is the mean number of grounded phrases.
    """

    def __init__(
        self, categories: Mapping[int, Category], *, complete: bool = True, grounded: float = _GROUNDED_MEAN
    ) -> None:
        self.lexicon, self.complete, self.grounded = Lexicon(categories), complete, grounded
        self.things = {c.id for c in categories.values() if c.isthing}

    def __call__(
        self,
        image: PanopticImage,
        ids: SegmentIds,
        pixels: NDArray[np.uint8] | None,
        rng: np.random.Generator,
        *,
        negative_phrases: int = 0,
        mirrored: bool = False,
    ) -> GeneratedCaption:
        """Describe the segments that have pixels in `ids` (H, W); colors need `pixels` (H, W, 3).

        Args:
            negative_phrases: number of phrases for categories of the data set that are not in the image;
                none where the annotation is not complete.
            mirrored: the image is mirrored, so left and right are exchanged in what people wrote.
        """
        if not self.complete:
            expressions = Expressions(image, ids, self.things, mirrored=mirrored)
            return expressions.woven(rng) or GeneratedCaption("", ())
        regions = find_regions(image, self.lexicon.categories, ids, pixels)
        return self._narrative(regions, rng, negative_phrases)

    def _mentioner(self, regions: list[Region], rng: np.random.Generator) -> Mentioner:
        return Mentioner(Vocabulary(self.lexicon, regions, Wording(rng)))

    def _narrative(
        self, regions: list[Region], rng: np.random.Generator, negative_phrases: int
    ) -> GeneratedCaption:
        mentioner = self._mentioner(regions, rng)
        mentions = _choose_mentions(mentioner, rng.normal(self.grounded, _GROUNDED_SPREAD))
        absent = [mentioner.absent() for _ in range(negative_phrases)]
        return _write(mentioner, mentions, [m for m in absent if m])

    def captions(
        self,
        image: PanopticImage,
        ids: SegmentIds,
        pixels: NDArray[np.uint8],
        rng: np.random.Generator,
        *,
        count: int = 1,
        negative_phrases: int = 0,
        mirrored: bool = False,
    ) -> list[GeneratedCaption]:
        """Captions that are independent of each other.

        Where the annotation is complete, `count` narratives and short captions that ask for one of
        several things of a kind; with negative phrases also nouns alone, present and absent, and some
        narratives with several absent phrases. And what people wrote of single segments. The other
        arguments are those of a single caption.
        """
        captions = []
        if self.complete:
            regions = find_regions(image, self.lexicon.categories, ids, pixels)
            for _ in range(count):
                wrong = negative_phrases and rng.random() < _MOSTLY_WRONG
                absent = int(rng.integers(2, 6)) * negative_phrases if wrong else negative_phrases
                captions.append(self._narrative(regions, rng, absent))
            mentioner = self._mentioner(regions, rng)
            captions += requests(mentioner, wrong=negative_phrases > 0)
            captions += plain_nouns(mentioner) if negative_phrases else []
        if any(s.expressions for s in image.segments):
            captions += Expressions(image, ids, self.things, mirrored=mirrored).captions(rng)
        return captions


def _choose_mentions(mentioner: Mentioner, target: float) -> list[Mention]:
    """Mentions, the salient first, until the planned number of grounded phrases is reached."""
    rng = mentioner.wording.rng
    by_category = mentioner.vocabulary.by_category
    chosen: list[Mention] = mentioner.by_hypernym() if mentioner.chance(0.25) else []
    mentioned = {i for m in chosen for n in m.nouns for i in n.ids}
    order = {}
    for id, regions in by_category.items():
        fraction = sum(r.area_fraction for r in regions)
        weight = fraction**0.5 + 0.1 * regions[0].category.isthing
        order[id] = rng.exponential() / (weight if fraction > 5e-4 else weight / 10)
    for id in sorted(order, key=order.__getitem__):
        if sum(len(n.ids) > 0 for m in chosen for n in m.nouns) >= max(target, 1):
            break
        if all(r.id in mentioned for r in by_category[id]):
            continue
        chosen += mentioner.of_category(id)
        mentioned |= {i for m in chosen for n in m.nouns for i in n.ids}
    return chosen


def _write(mentioner: Mentioner, mentions: list[Mention], absent: list[Mention]) -> GeneratedCaption:
    """Sentences from the front of the image to its background."""
    chance, choose = mentioner.chance, mentioner.choose
    writer = _SentenceWriter(mentioner, choose(TEMPLATES["image_nouns"]), choose(TEMPLATES["verbs"]))
    placed: dict[str, list[Mention]] = {p: [] for p in ("", *SIDES, "front", "back")}
    for mention in mentions:
        placed[writer.place(mention)].append(mention)
    for mention in absent:
        placed[writer.place(mention) if mention.sides else choose(("", "back", "front"))].append(mention)
    if chance(0.5):
        place = choose([p for p in ("", "front", "back") if placed[p]] or [""])
        placed[place].append(mentioner.ungrounded())
    sentences = []
    if not placed[""] and (not mentions or chance(0.3)):
        sentences.append(writer.fill(f"This is {indefinite_article(writer.image_noun)} [F]."))
    middle = [p for p in (*SIDES, "front") if placed[p]]
    order = ["", *(middle[int(i)] for i in mentioner.wording.rng.permutation(len(middle))), "back"]
    for place in order:
        while placed[place]:
            count = int(mentioner.wording.rng.integers(2, 7))
            sentences.append(writer.sentence(place, placed[place][:count], first=not sentences))
            placed[place] = placed[place][count:]
    for mention in mentions:
        noun = mentioner.second_noun(mention)
        if noun and chance(0.1 + 0.6 * (len(mentions) < 3)):
            sentences.append(writer.fill(choose(TEMPLATES["second_mentions"]), noun))
        if chance(0.25):
            sentences.append(mentioner.one_of(mention))
    if chance(0.4):
        outdoors = mentioner.vocabulary.outdoors
        aside = choose([a for a in TEMPLATES["asides"] if outdoors or not a.startswith("~")])
        sentences.append(writer.fill(aside.removeprefix("~")))
    return render(_first_is_one([piece for sentence in sentences for piece in sentence]))


def _first_is_one(pieces: list[Piece]) -> list[Piece]:
    """Replace `another man` by `one man` where no man was mentioned before."""
    mentioned: set[str] = set()
    for n, piece in enumerate(pieces):
        if isinstance(piece, NounPhrase) and piece.ids:
            head = piece.text.removeprefix("another ")
            if head != piece.text and head not in mentioned:
                pieces[n] = replace(piece, text=f"one {head}")
            mentioned.add(head)
    return pieces


@dataclass
class _SentenceWriter:
    """Sentences of one caption, mostly with the same noun for the image and the same verb."""

    mentioner: Mentioner
    image_noun: str
    verb: str

    def __post_init__(self) -> None:
        self.chance, self.choose = self.mentioner.chance, self.mentioner.choose

    def place(self, mention: Mention) -> str:
        """The sentence that a mention goes to: a side, `front`, `back`, or `""` for the opening."""
        if mention.required_side:
            return mention.required_side if self.chance(0.6) else ""
        if mention.background and self.chance(0.6):
            return "top" if "top" in mention.sides and self.chance(0.35) else "back"
        if mention.sides and self.chance(0.35):
            return self.choose(sorted(mention.sides))
        if self.chance(0.12):
            return "back"
        return "front" if "bottom" in mention.sides and self.chance(0.3) else ""

    def parse(self, template: str) -> Pieces:
        """The pieces of a template, with the noun for the image."""
        return parse_template(template.replace("[F]", f"[{self.image_noun}]"))

    def fill(self, template: str, noun: NounPhrase | None = None) -> Pieces:
        """The pieces of a template, `@` replaced; none if it names what the data set annotates."""
        before, at, after = template.partition("@")
        start, end = self.parse(before), self.parse(after)
        if self.mentioner.vocabulary.is_annotated(start + end):
            return ()
        return (*start, *((noun,) if noun and at else ()), *end)

    def sentence(self, place: str, mentions: list[Mention], first: bool) -> Pieces:
        """One sentence about some mentions."""
        if place:
            opening = self.choose(PLACES[place])
            if first and self.chance(0.4):
                opening = f"In this [{self.image_noun}] {opening[0].lower()}{opening[1:]}"
        else:
            kind = "openings" if first or self.chance(0.1) else "continuations"
            opening = self.choose(TEMPLATES[kind])
        if first and not place and self.chance(0.06):
            opening, verb = "This [F]", "consists of"
        else:
            verb = self.verb if self.chance(0.75) else self.choose(TEMPLATES["verbs"])
        if verb == "there":
            verb = "there are" if mentions[0].plural else "there is"
        elif opening in ("", "and", "also") and not first and self.chance(0.2):
            verb = verb.replace("can ", "can also ")
        items = [self.item(mention, place) for mention in mentions]
        return (*self.parse(opening), verb, *self.enumeration(items), ".")

    def item(self, mention: Mention, place: str) -> Pieces:
        """A mention, followed by its side where the sentence does not begin with it."""
        side = mention.required_side if mention.required_side != place else ""
        if not side and not place and mention.sides and self.chance(0.15):
            side = self.choose(sorted(mention.sides))
        if not side:
            return mention.pieces
        phrase = self.choose(PLACES[side]).rstrip(",")
        return (*mention.pieces, *self.parse(phrase[0].lower() + phrase[1:]))

    def enumeration(self, items: list[Pieces]) -> Pieces:
        """`a, b and c`, or `a and b and c`."""
        comma = "," if self.chance(0.85) else "and"
        pieces: list[Piece] = list(items[0])
        for n, item in enumerate(items[1:], 2):
            pieces += ["and" if n == len(items) else comma, *item]
        return tuple(pieces)
