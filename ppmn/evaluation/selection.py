"""What is measured: the narratives of a split or of a part of it; images without any are narrated."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from tqdm import tqdm

from ppmn.config import TrainConfig
from ppmn.data.index import Narratives, open_narratives
from ppmn.data.narratives import Narrative, narratives_file
from ppmn.data.panoptic import PanopticImage, read_panoptic
from ppmn.data.partition import SplitPart, in_part
from ppmn.errors import InputError
from ppmn.images import read_image
from ppmn.synthetic.narrator import Narrator, rng_for
from ppmn.types import SegmentIds

VALIDATION_EPOCH = 2**31  # seeds the narratives that are generated for validation
_log = logging.getLogger(__name__)


class NarrativeSubset(Sequence[Narrative]):
    """Some of the narratives of a source; `fingerprint` identifies the source."""

    def __init__(self, narratives: Sequence[Narrative], places: Iterable[int], fingerprint: str) -> None:
        self.narratives, self.places, self.fingerprint = narratives, list(places), fingerprint

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, i: int) -> Narrative: ...
    @overload
    def __getitem__(self, i: slice) -> list[Narrative]: ...
    def __getitem__(self, i: int | slice) -> Narrative | list[Narrative]:
        if isinstance(i, slice):
            return [self.narratives[place] for place in self.places[i]]
        return self.narratives[self.places[i]]


NarrativeSource = Narratives | NarrativeSubset


def select_narratives(
    root: Path, split: str, part: SplitPart, *, incomplete: bool = False
) -> NarrativeSource:
    """The narratives of one part of a split: those of its file, or generated ones where it has none.

    `incomplete` says that not all that the categories name is annotated, whatever the file says.
    """
    if not narratives_file(root, split).is_file():
        return _generate(root, split, part, incomplete)
    narratives = open_narratives(root, split)
    if part == "all":
        return narratives
    places = (i for i, narrative in enumerate(narratives) if in_part(narrative.image, part))
    return NarrativeSubset(narratives, places, narratives.fingerprint)


def generated_narrative(narrator: Narrator, image: PanopticImage, index: int, seed: int) -> Narrative:
    """The narrative that validation generates for image `index` of its file, the same at every call."""
    pixels, ids = np.asarray(read_image(image.file)), read_segment_ids(image)
    if pixels.shape[:2] != ids.shape:
        have, need = (" x ".join(map(str, size)) for size in (pixels.shape[:2], ids.shape))
        raise InputError(f"{image.file} has {have} pixels, its annotation says {need}")
    generated = narrator(image, ids, pixels, rng_for(seed, VALIDATION_EPOCH, index))
    grounded = tuple(p for p in generated.phrases if p.segment_ids)
    return Narrative(image, index, generated.caption, grounded)


def read_segment_ids(image: PanopticImage) -> SegmentIds:
    """Segment id of every pixel, (H, W); a PNG of another size than annotated is refused."""
    ids = image.ids()
    if ids.shape != (image.height, image.width):
        raise InputError(
            f"{image.segmentation} has {ids.shape[0]} x {ids.shape[1]} pixels, its annotation says "
            f"{image.height} x {image.width}"
        )
    return ids


def _generate(root: Path, split: str, part: SplitPart, incomplete: bool) -> NarrativeSubset:
    panoptic = read_panoptic(root, split)
    complete = panoptic.complete and not incomplete
    if not complete and not any(image.described for image in panoptic.images):
        raise InputError(
            f"{root}:{split} is incomplete and has neither narratives nor expressions to measure"
        )
    narrator = Narrator(panoptic.categories, complete=complete)
    chosen = [(i, image) for i, image in enumerate(panoptic.images) if in_part(image, part)]
    narratives = [
        generated_narrative(narrator, image, index, TrainConfig.seed)
        for index, image in tqdm(
            chosen, f"narrate {root.name}:{split}", unit="image", leave=False, disable=None
        )
    ]
    places = [i for i, narrative in enumerate(narratives) if narrative.phrases]
    if len(places) < len(narratives):
        _log.warning(f"{root}: {len(narratives) - len(places)} images have nothing to narrate")
    texts = repr([(n.image.file.name, n.caption, n.phrases) for n in narratives])
    return NarrativeSubset(narratives, places, hashlib.sha256(texts.encode()).hexdigest())
