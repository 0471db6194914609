"""Training samples: an image, its narrative (annotated, or generated each time), and its segment ids."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from PIL import Image

from ppmn.config import Augment
from ppmn.data.index import Narratives, open_narratives
from ppmn.data.narratives import AnnotatedPhrase, Narrative, narratives_file
from ppmn.data.panoptic import (
    DataSpec,
    PanopticImage,
    named_splits,
    read_panoptic,
    source_name,
    unknown_ids,
)
from ppmn.errors import InputError
from ppmn.evaluation.selection import generated_narrative
from ppmn.images import read_image
from ppmn.synthetic.captions import GeneratedCaption, mirror_caption
from ppmn.synthetic.narrator import Narrator, rng_for
from ppmn.training.augment import View, color_jitter, flip_and_crop, paste_things
from ppmn.types import SegmentIds

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingSample:
    """One image with its captions, which are independent of each other.

    Their phrases are those with a target: grounded, or known to be absent.
    """

    annotation: PanopticImage
    image: Image.Image
    ids: SegmentIds
    captions: tuple[GeneratedCaption, ...]
    ignore_ids: tuple[int, ...]
    augmented: bool = False  # the image differs from its file, apart from a flip that was asked for

    @property
    def phrases(self) -> tuple[AnnotatedPhrase, ...]:
        """The phrases of all captions."""
        return tuple(phrase for caption in self.captions for phrase in caption.phrases)

    def is_single(self, phrase: AnnotatedPhrase) -> bool:
        """Whether a phrase means exactly one thing."""
        crowds = {s.id for s in self.annotation.segments if s.iscrowd}
        return phrase.isthing and len(phrase.segment_ids) == 1 and phrase.segment_ids[0] not in crowds


class Source:
    """One split of one folder; a split without a file of narratives is narrated.

    `incomplete` says that not all that its categories name is annotated, whatever its files say.
    """

    def __init__(self, root: Path, split: str, weight: float = 1.0, *, incomplete: bool = False) -> None:
        self.name, self.weight = source_name(root, split), weight
        self.narratives: Sequence[Narrative] | None = None
        self.images: Sequence[PanopticImage] = ()
        if narratives_file(root, split).is_file():
            narratives = open_narratives(root, split)
            self.narratives, self.categories = narratives, narratives.categories
            self.fingerprint, self.complete = narratives.fingerprint, narratives.complete
            self._warn_of_unused(narratives)
        else:
            panoptic = read_panoptic(root, split)
            self.categories, self.images = panoptic.categories, panoptic.images
            self.complete = panoptic.complete
            listed = repr([(i.file.name, i.segments) for i in self.images])
            self.fingerprint = hashlib.sha256(listed.encode()).hexdigest()
        self.complete = self.complete and not incomplete
        if self.narratives is None and not self.complete:
            self._keep_described(f"{root}:{split}")
        self.ignore_ids = unknown_ids(self.categories, complete=self.complete)

    def _warn_of_unused(self, narratives: Narratives) -> None:
        """Say what is not trained on where a split has narratives."""
        images, expressions = narratives.images_without, narratives.expressions
        if images:
            _log.warning(f"{self.name}: {images} images without narratives are not used")
        if expressions:
            _log.warning(f"{self.name}: {expressions} expressions are not used beside narratives")

    def _keep_described(self, name: str) -> None:
        """Of an incomplete source without narratives, only what people described can be trained on."""
        described = tuple(i for i in self.images if i.described)
        if not described:
            raise InputError(f"{name} is incomplete and has neither narratives nor expressions to train on")
        if len(described) < len(self.images):
            _log.warning("%s: %d images without expressions", name, len(self.images) - len(described))
        self.images = described

    @cached_property
    def narrator(self) -> Narrator:
        return Narrator(self.categories, complete=self.complete)

    def __len__(self) -> int:
        return len(self.images if self.narratives is None else self.narratives)

    def annotation(self, index: int) -> PanopticImage:
        """The panoptic annotation of a sample."""
        return self.images[index] if self.narratives is None else self.narratives[index].image

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
        flip: bool = False,
    ) -> TrainingSample:
        """One image with captions that are true of it as it is after augmentation.

        Images with annotated narratives are not augmented, those with expressions are only flipped and
        changed in color. `flip` mirrors the image first.
        """
        annotation, image, ids = view = self._read(index, flip)
        if self.narratives is not None:
            narrative = self.narratives[index]
            captions = [GeneratedCaption(narrative.caption, narrative.phrases)]
            captions = [mirror_caption(c) for c in captions] if flip else captions
            return TrainingSample(annotation, image, ids, _with_targets(captions), self.ignore_ids)
        augment = augment or Augment()
        image_rng = rng_for(copy, index, 0) if augment.fixed else rng
        augment = Augment() if augment.fixed and copy == 0 else augment
        narrate = partial(
            self.narrator.captions, rng=rng, count=narratives_per_image, negative_phrases=negative_phrases
        )
        if annotation.described:
            flipped = augment.flip and image_rng.random() < 0.5
            image, ids = mirror(image, ids) if flipped else (image, ids)
            captions = narrate(annotation, ids, np.asarray(image), mirrored=flip != flipped)
        else:
            annotation, whole_image, whole_ids = self._paste(view, donors, image_rng, augment.max_pasted)
            image, ids = flip_and_crop(whole_image, whole_ids, image_rng, augment)
            captions = narrate(annotation, ids, np.asarray(image))
            if not any(p.segment_ids for c in captions for p in c.phrases):  # nothing is left in the crop
                image, ids = whole_image, whole_ids
                captions = narrate(annotation, ids, np.asarray(image))
        image = color_jitter(image, image_rng, augment.color_jitter)  # now that colors are named
        augmented = augment != Augment()
        return TrainingSample(annotation, image, ids, _with_targets(captions), self.ignore_ids, augmented)

    def _read(self, index: int, flip: bool) -> View:
        annotation = self.annotation(index)
        image, ids = read_image(annotation.file), annotation.ids()
        if ids.shape != (image.height, image.width):
            size = f"{ids.shape[1]}x{ids.shape[0]}"
            raise InputError(f"{annotation.file} is {image.width}x{image.height} and its segmentation {size}")
        return (annotation, *mirror(image, ids)) if flip else (annotation, image, ids)

    def _paste(self, view: View, donors: Sequence[int], rng: np.random.Generator, limit: int) -> View:
        count = int(rng.integers(limit + 1)) if limit and donors else 0
        if not count:
            return view
        things = {c.id for c in self.categories.values() if c.isthing}
        donor = self.images[donors[int(rng.integers(len(donors)))]]
        return paste_things(view, donor, things, rng, count)

    def narrative(self, index: int, seed: int) -> Narrative:
        """The narrative for validation: the annotated one, or one that is the same at every call."""
        if self.narratives is not None:
            return self.narratives[index]
        return generated_narrative(self.narrator, self.images[index], index, seed)


def mirror(image: Image.Image, ids: SegmentIds) -> tuple[Image.Image, SegmentIds]:
    """An image and its ids with left and right exchanged."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), np.ascontiguousarray(ids[:, ::-1])


def _with_targets(captions: Sequence[GeneratedCaption]) -> tuple[GeneratedCaption, ...]:
    """The captions with those of their phrases that have a target; one without any only if all are."""
    found = []
    for caption in captions:
        phrases = tuple(p for p in caption.phrases if p.segment_ids or p.absent)
        found.append(replace(caption, phrases=phrases))
    return tuple(c for c in found if c.phrases) or tuple(found[:1])


def open_training_sources(specs: Sequence[DataSpec]) -> list[Source]:
    """All splits that are meant; a folder without a split means all of its splits."""
    named = list(named_splits(specs))  # what is refused is refused before anything is read
    sources = [Source(spec.root, split, spec.weight, incomplete=spec.incomplete) for _, spec, split in named]
    if not any(len(source) for source in sources):
        raise InputError(f"there is nothing to train on in {', '.join(str(spec.root) for spec in specs)}")
    return sources
