"""Captions from what people wrote about single segments: each expression alone, or a few in one text."""

import numpy as np

from ppmn.data.panoptic import PanopticImage, segment_positions
from ppmn.synthetic.captions import GeneratedCaption, counts_from_a_side, render, swap_sides
from ppmn.synthetic.wording import NounPhrase, Piece
from ppmn.types import SegmentIds

MAX_PER_SEGMENT, MAX_PER_IMAGE = 3, 16  # expressions of one segment, and captions of one image
_WOVEN = 0.3  # how often a text of several expressions is added
_WOVEN_WORDS = 8  # longest expression in it
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
        captions = [render([chosen[int(i)]], raw=True) for i in rng.permutation(len(chosen))[:MAX_PER_IMAGE]]
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
        for part in _TEMPLATES[int(rng.integers(len(_TEMPLATES)))]:
            if part == "":
                noun = next(nouns, None)
                if noun is None:
                    break
                pieces.append(noun)
            else:
                pieces.append(part)
        return render(_ended(pieces))


def _ended(pieces: list[Piece]) -> list[Piece]:
    """The pieces up to the last noun phrase, with a full stop."""
    last = max(n for n, piece in enumerate(pieces) if isinstance(piece, NounPhrase))
    return [*pieces[: last + 1], "."]
