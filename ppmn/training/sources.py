"""What is trained on: a photo, its narrative (given, or made anew every epoch), and its segment ids."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppmn.config import Augment
from ppmn.data.index import open_narratives
from ppmn.data.narratives import AnnotatedPhrase, Narrative, narratives_file
from ppmn.data.panoptic import IGNORE_ID, UNLABELED, PanopticImage, read_panoptic
from ppmn.data.source_spec import parse_spec
from ppmn.errors import InputError
from ppmn.images import read_image
from ppmn.synthetic.narrator import GeneratedCaption, Narrator, join_captions, rng_for
from ppmn.training.augment import changed_photo, pasted, recoloured

ONCE = 2**31  # the epoch in which validation narratives are made


@dataclass(frozen=True)
class Sample:
    """One photo with one narrative, as the network is to see them."""

    image: PanopticImage
    photo: Image.Image
    ids: NDArray[np.int32]  # (H, W)
    caption: str
    phrases: tuple[AnnotatedPhrase, ...]  # the supervised ones: grounded, or known to be absent
    void: tuple[int, ...]  # ids that are neither in nor out
    changed: bool = False  # the photo is not as its file has it


class Source:
    """One split of one folder: narratives where it has them, otherwise photos that are narrated."""

    def __init__(self, root: Path, split: str, weight: float) -> None:
        self.name, self.weight = f"{root.name}:{split}", weight
        self.given: Sequence[Narrative] | None = None
        self.images: Sequence[PanopticImage] = ()
        if narratives_file(root, split).is_file():
            narratives = open_narratives(root, split)
            self.given, self.categories = narratives, narratives.categories
            self.fingerprint, self.complete = narratives.fingerprint, narratives.complete
        else:
            panoptic = read_panoptic(root, split)
            self.categories, self.images = panoptic.categories, panoptic.images
            self.complete = panoptic.complete
            listed = repr([(i.file.name, i.segments) for i in self.images])
            self.fingerprint = hashlib.sha256(listed.encode()).hexdigest()
        self.has_stuff = any(not c.isthing for c in self.categories.values())

    @cached_property
    def narrator(self) -> Narrator:
        return Narrator(self.categories, complete=self.complete)

    def __len__(self) -> int:
        return len(self.images if self.given is None else self.given)

    def image(self, index: int) -> PanopticImage:
        return self.images[index] if self.given is None else self.given[index].image

    def void(self, image: PanopticImage) -> tuple[int, ...]:
        """Unlabelled pixels are unknown where people labelled stuff too, and background elsewhere."""
        unknown = self.has_stuff and all(s.score is None for s in image.segments)
        return (UNLABELED, IGNORE_ID) if unknown else (IGNORE_ID,)

    def sample(
        self,
        index: int,
        rng: np.random.Generator,
        augment: Augment,
        absent: int,
        copy: int = 0,
        donors: Sequence[int] = (),
        narratives: int = 1,
    ) -> Sample:
        """One sample; a made narrative tells what is there after pasting from `donors`, flips and crops."""
        image = self.image(index)
        photo, ids = read_image(image.file), image.ids()
        if ids.shape != (photo.height, photo.width):
            there = f"{ids.shape[1]}x{ids.shape[0]}"
            raise InputError(f"{image.file} is {photo.width}x{photo.height} and its segmentation {there}")
        if self.given is not None:
            narrative = self.given[index]
            return Sample(image, photo, ids, narrative.caption, narrative.grounded, self.void(image))
        chance = rng_for(copy, index, 0) if augment.fixed else rng
        augment = Augment() if augment.fixed and copy == 0 else augment
        paste = int(chance.integers(augment.max_pasted + 1)) if augment.max_pasted and donors else 0
        if paste:
            things = {c.id for c in self.categories.values() if c.isthing}
            donor = self.images[donors[int(chance.integers(len(donors)))]]
            image, photo, ids = pasted((image, photo, ids), donor, things, chance, paste)
        changed, changed_ids = changed_photo(photo, ids, chance, augment)
        told = self.told(image, changed_ids, changed, rng, absent, narratives)
        if not any(p.segment_ids for p in told.phrases):  # the crop kept nothing that can be told
            changed, changed_ids = photo, ids
            told = self.told(image, ids, photo, rng, absent, narratives)
        phrases = tuple(p for p in told.phrases if p.segment_ids or p.absent)
        coloured = recoloured(changed, chance, augment.color_jitter)
        void = self.void(image)
        return Sample(image, coloured, changed_ids, told.caption, phrases, void, augment != Augment())

    def told(
        self,
        image: PanopticImage,
        ids: NDArray[np.int32],
        photo: Image.Image,
        rng: np.random.Generator,
        absent: int,
        narratives: int,
    ) -> GeneratedCaption:
        """So many narratives of one photo, one after the other."""
        pixels = np.asarray(photo)
        return join_captions(
            [self.narrator(image, ids, pixels, rng, negative_phrases=absent) for _ in range(narratives)]
        )

    def narrative(self, index: int, seed: int) -> Narrative:
        """The narrative that validation uses: the given one, or one made once and for all."""
        if self.given is not None:
            return self.given[index]
        sample = self.sample(index, rng_for(seed, ONCE, index), Augment(), 0)
        return Narrative(sample.image, index, sample.caption, sample.phrases)


def open_sources(specs: Sequence[str]) -> list[Source]:
    """All splits that `--data ROOT[:SPLIT][=WEIGHT]` names."""
    sources = []
    for spec in map(parse_spec, specs):
        for split in spec.splits:
            sources.append(Source(spec.root, split, spec.weight))
    if not any(len(source) for source in sources):
        raise InputError(f"there is nothing to train on in {', '.join(specs)}")
    return sources


def held_out(image: PanopticImage, share: float) -> bool:
    """Whether a photo is for validation: by its name, so that it is so in every source that has it."""
    digest = hashlib.sha256(image.file.stem.encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32
