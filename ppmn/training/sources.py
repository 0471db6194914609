"""Training samples: an image, its narrative (annotated, or generated each time), and its segment ids."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from ppmn.config import Augment
from ppmn.data.index import open_narratives
from ppmn.data.narratives import AnnotatedPhrase, Narrative, narratives_file
from ppmn.data.panoptic import IGNORE_ID, UNLABELED, DataSpec, PanopticImage, read_panoptic
from ppmn.errors import InputError
from ppmn.evaluation.selection import generated_narrative
from ppmn.images import read_image
from ppmn.synthetic.narrator import GeneratedCaption, Narrator, join_captions, rng_for
from ppmn.training.augment import color_jitter, flip_and_crop, paste_things
from ppmn.types import SegmentIds


@dataclass(frozen=True)
class TrainingSample:
    """One image with one narrative."""

    annotation: PanopticImage
    image: Image.Image
    ids: SegmentIds
    caption: str
    phrases: tuple[AnnotatedPhrase, ...]  # those with a target: grounded, or known to be absent
    ignore_ids: tuple[int, ...]
    augmented: bool = False  # the image differs from its file


class Source:
    """One split of one folder; images without annotated narratives are narrated."""

    def __init__(self, root: Path, split: str, weight: float = 1.0) -> None:
        self.name, self.weight = f"{root.name}:{split}", weight
        self.narratives: Sequence[Narrative] | None = None
        self.images: Sequence[PanopticImage] = ()
        if narratives_file(root, split).is_file():
            narratives = open_narratives(root, split)
            self.narratives, self.categories = narratives, narratives.categories
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
        return len(self.images if self.narratives is None else self.narratives)

    def annotation(self, index: int) -> PanopticImage:
        """The panoptic annotation of a sample."""
        return self.images[index] if self.narratives is None else self.narratives[index].image

    def ignore_ids(self, annotation: PanopticImage) -> tuple[int, ...]:
        """Unlabelled pixels are ignored where people labelled stuff too, and background elsewhere."""
        by_people = self.has_stuff and all(s.score is None for s in annotation.segments)
        return (UNLABELED, IGNORE_ID) if by_people else (IGNORE_ID,)

    def sample(
        self,
        index: int,
        rng: np.random.Generator,
        *,
        augment: Augment | None = None,
        negative_phrases: int = 0,
        narratives_per_image: int = 1,
        copy: int = 0,
        donors: Sequence[int] = (),
    ) -> TrainingSample:
        """One sample; only images whose narrative is generated are augmented, before it is generated."""
        annotation = self.annotation(index)
        image, ids = read_image(annotation.file), annotation.ids()
        if ids.shape != (image.height, image.width):
            size = f"{ids.shape[1]}x{ids.shape[0]}"
            raise InputError(f"{annotation.file} is {image.width}x{image.height} and its segmentation {size}")
        if self.narratives is not None:
            narrative = self.narratives[index]
            ignore_ids = self.ignore_ids(annotation)
            return TrainingSample(annotation, image, ids, narrative.caption, narrative.grounded, ignore_ids)
        augment = augment or Augment()
        image_rng = rng_for(copy, index, 0) if augment.fixed else rng
        augment = Augment() if augment.fixed and copy == 0 else augment
        annotation, image, ids = self._paste((annotation, image, ids), donors, image_rng, augment.max_pasted)
        cropped, cropped_ids = flip_and_crop(image, ids, image_rng, augment)
        counts = (negative_phrases, narratives_per_image)
        narrated = self._narrate(annotation, cropped_ids, cropped, rng, *counts)
        if not any(p.segment_ids for p in narrated.phrases):  # nothing to narrate is left in the crop
            cropped, cropped_ids = image, ids
            narrated = self._narrate(annotation, ids, image, rng, *counts)
        phrases = tuple(p for p in narrated.phrases if p.segment_ids or p.absent)
        jittered = color_jitter(cropped, image_rng, augment.color_jitter)  # narratives name colors
        ignore_ids, augmented = self.ignore_ids(annotation), augment != Augment()
        return TrainingSample(
            annotation, jittered, cropped_ids, narrated.caption, phrases, ignore_ids, augmented
        )

    def _paste(
        self,
        view: tuple[PanopticImage, Image.Image, SegmentIds],
        donors: Sequence[int],
        rng: np.random.Generator,
        limit: int,
    ) -> tuple[PanopticImage, Image.Image, SegmentIds]:
        count = int(rng.integers(limit + 1)) if limit and donors else 0
        if not count:
            return view
        things = {c.id for c in self.categories.values() if c.isthing}
        donor = self.images[donors[int(rng.integers(len(donors)))]]
        return paste_things(view, donor, things, rng, count)

    def _narrate(
        self,
        annotation: PanopticImage,
        ids: SegmentIds,
        image: Image.Image,
        rng: np.random.Generator,
        negative_phrases: int,
        count: int,
    ) -> GeneratedCaption:
        """As many narratives of one image as asked for, joined to one."""
        pixels = np.asarray(image)
        captions = [
            self.narrator(annotation, ids, pixels, rng, negative_phrases=negative_phrases)
            for _ in range(count)
        ]
        return join_captions(captions)

    def narrative(self, index: int, seed: int) -> Narrative:
        """The narrative for validation: the annotated one, or one that is the same at every call."""
        if self.narratives is not None:
            return self.narratives[index]
        return generated_narrative(self.narrator, self.images[index], index, seed)


def open_training_sources(specs: Sequence[DataSpec]) -> list[Source]:
    """All splits that are meant; a folder without a split means all of its splits."""
    sources = []
    for spec in specs:
        for split in spec.splits:
            sources.append(Source(spec.root, split, spec.weight))
    if not any(len(source) for source in sources):
        raise InputError(f"there is nothing to train on in {', '.join(str(spec.root) for spec in specs)}")
    return sources
