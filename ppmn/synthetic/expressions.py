"""Captions from what people wrote about single segments: each expression alone, or a few in one text."""

from dataclasses import replace

import numpy as np

from ppmn.data.panoptic import PanopticImage, segment_positions
from ppmn.phrases.rules import find_phrases
from ppmn.synthetic.captions import GeneratedCaption, counts_from_a_side, render, swap_sides
from ppmn.synthetic.wording import NounPhrase, Piece, indefinite_article
from ppmn.types import SegmentIds

MAX_PER_SEGMENT, MAX_PER_IMAGE = 3, 16  # expressions of one segment, and captions of one image
_WOVEN = 0.3  # how often a text of several expressions is added
_WOVEN_WORDS = 8  # longest expression in it
_HEAD_ALONE = 0.5  # how often only the head of an expression is the phrase, as in narratives: `[man] in red`
_ARTICLES = ("", "a", "an", "the")
_TEMPLATES = (
    ("There is", "", ".", "We can also see", "", ".", "There is", "", "."),
    ("In this image I can see", "", "and", "", ".", "There is also", "", "."),
    ("We can see", "", ",", "", "and", "", "."),
    ("I can see", "", ".", "There is", "", ".", "Also there is", "", "."),
)


class Expressions:
    """The expressions of the segments that are visible in `ids`.

    In a mirrored image left and right are exchanged in them, and those that count from a side without
    saying which are left out as long as there are others.
    """

    def __init__(self, image: PanopticImage, ids: SegmentIds, things: set[int], *, mirrored: bool = False):
        described = [s for s in image.segments if s.expressions]
        visible = np.bincount(segment_positions(ids, [s.id for s in described]).ravel())
        self.phrases: dict[int, list[NounPhrase]] = {}  # of each segment, by its id
        for n, segment in enumerate(described, 1):
            if n < len(visible) and visible[n]:
                texts = [t for e in segment.expressions if (t := e.strip())]
                if mirrored:
                    kept = [t for t in texts if not counts_from_a_side(t)] or texts
                    texts = [swap_sides(t) for t in kept]
                isthing = segment.category_id in things
                self.phrases[segment.id] = [NounPhrase(t, (segment.id,), isthing) for t in texts]

    def captions(self, rng: np.random.Generator) -> list[GeneratedCaption]:
        """Single expressions in random order, and now and then one text of several."""
        chosen = []
        for phrases in self.phrases.values():
            chosen += [phrases[int(i)] for i in rng.permutation(len(phrases))[:MAX_PER_SEGMENT]]
        captions = []
        for index in rng.permutation(len(chosen))[:MAX_PER_IMAGE]:
            whole: list[Piece] = [chosen[int(index)]]
            head_alone = rng.random() < _HEAD_ALONE
            captions.append(render(split_head(chosen[int(index)]) if head_alone else whole, raw=True))
        if len(self.phrases) > 1 and rng.random() < _WOVEN and (woven := self.woven(rng)):
            captions = [*captions[: MAX_PER_IMAGE - 1], woven]
        return captions

    def woven(self, rng: np.random.Generator) -> GeneratedCaption | None:
        """Two or three segments in one text, with nothing said of how they relate; None for none."""
        short = [
            [p for p in phrases if len(p.text.split()) <= _WOVEN_WORDS] for phrases in self.phrases.values()
        ]
        short = [phrases for phrases in short if phrases]
        if not short:
            return None
        count = min(len(short), int(rng.integers(2, 4)))
        order = [short[int(i)] for i in rng.permutation(len(short))[:count]]
        nouns = iter([phrases[int(rng.integers(len(phrases)))] for phrases in order])
        pieces: list[Piece] = []
        written = 0  # pieces up to the last noun
        for part in _TEMPLATES[int(rng.integers(len(_TEMPLATES)))]:
            if part:
                pieces.append(part)
            elif noun := next(nouns, None):
                pieces += _narrated(noun, rng)
                written = len(pieces)
            else:
                break
        return render([*pieces[:written], "."])


def split_head(phrase: NounPhrase) -> list[Piece]:
    """An expression with only its head as the phrase: `the`, `man`, `in red`.

    The head is the first noun phrase, with nothing but an article before it; without one the expression
    stays whole.
    """
    found = find_phrases(phrase.text)
    before = phrase.text[: found[0].start].strip() if found else ""
    if not found or found[0].abstract or before.lower() not in _ARTICLES:
        return [phrase]
    head, after = replace(phrase, text=found[0].text), phrase.text[found[0].end :].strip()
    return [*([before] if before else []), head, *([after] if after else [])]


def _narrated(phrase: NounPhrase, rng: np.random.Generator) -> list[Piece]:
    """An expression inside a text, mostly with only its head as the phrase, after an article."""
    pieces = split_head(phrase)
    if len(pieces) == 1 or rng.random() < 0.25:
        return [phrase]
    if isinstance(pieces[0], NounPhrase) and rng.random() < 0.7:
        pieces.insert(0, indefinite_article(pieces[0].text))
    return pieces
