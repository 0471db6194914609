"""Phrases that are and that are not in training images, for train_presence.py."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppmn.data.panoptic import Panoptic, PanopticImage
from ppmn.images import read_image
from ppmn.model.text import TextEncoder
from ppmn.synthetic.captions import GeneratedCaption
from ppmn.synthetic.narrator import Narrator
from ppmn.synthetic.nouns import Lexicon, NounForm
from ppmn.types import Span

NARRATIVES = 2  # generated for each image
LISTS, OF_LISTS = 500, 4  # captions that list nouns, and how many of them an image is asked for
_LIST_LENGTHS = (2, 8)  # fewest and most nouns of a list
_SEPARATORS = (", ", " and ", " ", ". ")
SWAPPED, SWAPPED_BY_PEOPLE = 48, 12  # phrases of other images that are tried at each image
_BATCH = 256  # captions that are encoded together


@dataclass(frozen=True)
class Question:
    """A phrase as the text encoder gives it, and whether it is in an image.

    `meant` are the categories whose masks show all that it names; None: masks do not say.
    """

    vector: Tensor
    present: bool
    meant: frozenset[int] | None = None


@dataclass(frozen=True)
class Noun:
    """A way to name a category, and the categories that it may mean."""

    text: str
    span: Span
    meant: frozenset[int]
    lemma: str


@dataclass(frozen=True)
class Written:
    """A phrase of a caption: where its vector is, and the categories that it means."""

    index: int
    text: str
    absent: bool
    categories: frozenset[int]


class PresencePhrases:
    """The phrases of one source, each as the vector that the text encoder gives it."""

    def __init__(self, source: Panoptic, images: Sequence[PanopticImage], seed: int) -> None:
        self.lexicon, self.complete = Lexicon(source.categories), source.complete
        self.narrator = Narrator(source.categories, complete=source.complete)
        self.nouns = list(_nouns(self.lexicon)) if source.complete else []
        self.texts: list[tuple[str, list[Span]]] = [(noun.text, [noun.span]) for noun in self.nouns]
        self.by_category: dict[int, list[int]] = defaultdict(list)
        for index, noun in enumerate(self.nouns):
            self.by_category[min(noun.meant)].append(index)
        self.lists = list(self._make_lists(np.random.default_rng(seed)))
        self.by_image: dict[str, list[Written]] = defaultdict(list)
        self.pool: list[tuple[str, Written]] = []  # phrases that are in their image
        self._meanings: dict[frozenset[int], frozenset[int]] = {}
        count = len(self.nouns) + sum(map(len, self.lists))
        for image in images:
            pixels = np.asarray(read_image(image.file))
            rng = np.random.default_rng((seed, image.id))
            number, negatives = (NARRATIVES, 1) if self.complete else (1, 0)
            captions = self.narrator.captions(
                image, image.ids(), pixels, rng, count=number, negative_phrases=negatives
            )
            for caption in captions:
                count += self._add(image, caption, count)

    def _make_lists(self, rng: np.random.Generator) -> Iterator[list[tuple[int, Noun]]]:
        """Captions of several nouns, with any separator: each noun and where its vector will be."""
        categories, count = sorted(self.by_category), len(self.nouns)
        for _ in range(LISTS if categories else 0):
            length = min(int(rng.integers(_LIST_LENGTHS[0], _LIST_LENGTHS[1] + 1)), len(categories))
            chosen = rng.choice(categories, length, replace=False)
            nouns = [self.nouns[int(rng.choice(self.by_category[int(id)]))] for id in chosen]
            text, spans = "", []
            separator = _SEPARATORS[int(rng.integers(len(_SEPARATORS)))]
            for noun in nouns:
                text += separator if text else ""
                spans.append((len(text) + noun.span[0], len(text) + noun.span[1]))
                text += noun.text
            self.texts.append((text, spans))
            yield list(enumerate(nouns, count))
            count += length

    def _add(self, image: PanopticImage, caption: GeneratedCaption, first: int) -> int:
        """Keep the phrases of a caption that are known to be in the image or not."""
        category = {s.id: s.category_id for s in image.segments}
        known = [p for p in caption.phrases if p.absent or p.segment_ids]
        if known:
            self.texts.append((caption.caption, [(p.start, p.end) for p in known]))
        for number, phrase in enumerate(known, first):
            text = caption.caption[phrase.start : phrase.end]
            meant = frozenset(category[id] for id in phrase.segment_ids)
            written = Written(number, text, phrase.absent, meant)
            self.by_image[image.file.stem].append(written)
            if not phrase.absent:
                self.pool.append((image.file.stem, written))
        return len(known)

    def encode(self, encoder: TextEncoder, autocast: AbstractContextManager[Any]) -> None:
        """Fill `vectors` (phrases, C_r), in half precision."""
        rows = []
        for start in range(0, len(self.texts), _BATCH):
            tokens = [encoder.tokenize(*text) for text in self.texts[start : start + _BATCH]]
            with torch.no_grad(), autocast:
                rows.append(encoder(tokens).vectors.half())
        self.vectors: Tensor = torch.cat(rows)

    def of_nouns(self, image: PanopticImage, rng: np.random.Generator) -> Iterator[Question]:
        """One noun for every category of the source."""
        here, hypernyms = self.content(image)
        for own in self.by_category.values():
            index = int(rng.choice(own))
            yield from self._asked(index, self.nouns[index], here, hypernyms)

    def of_lists(self, image: PanopticImage, rng: np.random.Generator) -> Iterator[Question]:
        """The nouns of some lists, half of which name something that is in the image."""
        here, hypernyms = self.content(image)
        fitting = [n for n, nouns in enumerate(self.lists) if any(noun.meant & here for _, noun in nouns)]
        for number in range(OF_LISTS if fitting else 0):
            n = int(rng.choice(fitting)) if number % 2 else int(rng.integers(len(self.lists)))
            for index, noun in self.lists[n]:
                yield from self._asked(index, noun, here, hypernyms)

    def _asked(self, index: int, noun: Noun, here: set[int], hypernyms: set[str]) -> Iterator[Question]:
        """A noun, unless it may mean something in the image by another name."""
        if noun.meant & here or noun.lemma not in hypernyms:
            yield Question(self.vectors[index], bool(noun.meant & here), noun.meant)

    def of_image(self, image: PanopticImage) -> Iterator[Question]:
        """The phrases of the image's own captions."""
        for phrase in self.by_image[image.file.stem]:
            yield Question(self.vectors[phrase.index], not phrase.absent)

    def swapped(
        self, image: PanopticImage, others: "PresencePhrases", count: int, rng: np.random.Generator
    ) -> Iterator[Question]:
        """Phrases of other images, of `others`, whose categories are not in the image."""
        here, hypernyms = self.content(image)
        for index in rng.integers(len(others.pool), size=count) if others.pool else ():
            name, phrase = others.pool[int(index)]
            words = {word.rstrip("s") for word in phrase.text.lower().split()}
            known = name != image.file.stem and 0 not in phrase.categories
            if known and not self.meanings(phrase.categories) & here and not words & hypernyms:
                yield Question(others.vectors[phrase.index], False)

    def content(self, image: PanopticImage) -> tuple[set[int], set[str]]:
        """The categories of an image, and the lemmas of words for several of them."""
        here = {s.category_id for s in image.segments}
        names = {self.lexicon.names[id] for id in here if id in self.lexicon.names}
        return here, self.lexicon.hypernym_lemmas(names)

    def meanings(self, categories: frozenset[int]) -> frozenset[int]:
        """These categories, and all that a noun for one of them may mean."""
        if categories not in self._meanings:
            nouns = (noun.meant for noun in self.nouns if noun.meant & categories)
            self._meanings[categories] = categories.union(*nouns)
        return self._meanings[categories]


def _nouns(lexicon: Lexicon) -> Iterator[Noun]:
    """All nouns of all categories, alone and after an article or "some", which may be part of the phrase."""
    for words in lexicon.words.values():
        for word in words:
            single = word.form == NounForm.SINGULAR
            amount = ("an" if word.text[0] in "aeiou" else "a") if single else "some"
            meant = frozenset(lexicon.category_ids(word))
            for before in ("", f"{amount} ", "the "):
                text = before + word.text
                for start in {0, len(before)}:
                    yield Noun(text, (start, len(text)), meant, word.lemma)
