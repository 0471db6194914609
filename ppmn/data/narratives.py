"""The narratives of one split as they are written: `png_coco_<split>.json` beside panoptic annotations."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppmn.data.align import align
from ppmn.data.panoptic import Panoptic, PanopticImage
from ppmn.errors import InputError
from ppmn.files import read_json


@dataclass(frozen=True, slots=True)
class AnnotatedPhrase:
    """A noun phrase of a narrative: characters `start` to `end` of the caption, and its segments."""

    start: int
    end: int
    segment_ids: tuple[int, ...]  # empty: not grounded
    isthing: bool  # category of the last segment, as the released reader has it
    absent: bool = False  # known not to be in the photo: its mask is empty

    @property
    def plural(self) -> bool:
        return len(self.segment_ids) > 1


@dataclass(frozen=True)
class Narrative:
    """One caption of one photo; `index` is its position in the file it was read from."""

    image: PanopticImage
    index: int
    caption: str
    phrases: tuple[AnnotatedPhrase, ...]  # every noun phrase, grounded or not, in the order of the file

    @property
    def grounded(self) -> tuple[AnnotatedPhrase, ...]:
        return tuple(p for p in self.phrases if p.segment_ids)


@dataclass(frozen=True)
class Problem:
    """What is wrong in a data set, and at which image."""

    image_id: int | str
    text: str


def narratives_file(root: Path, split: str) -> Path:
    """`png_coco_<split>.json`, in `annotations/` or beside it."""
    files = [root / "annotations" / f"png_coco_{split}.json", root / f"png_coco_{split}.json"]
    return next((f for f in files if f.is_file()), files[0])


def read_narratives(panoptic: Panoptic, report: Callable[[Problem], None]) -> Iterator[Narrative]:
    """Every narrative of a split whose photo is known; what cannot be read as written is reported.

    A phrase that names a segment its photo has not counts as not grounded, for its truth is not
    known; a phrase of which nothing is in the caption is left out.
    """
    file = narratives_file(panoptic.root, panoptic.split)
    if not file.is_file():
        raise InputError(f"{panoptic.root} has no narratives of split {panoptic.split!r}: {file} is missing")
    raw = read_json(file)
    images = {image.id: image for image in panoptic.images}
    if not isinstance(raw, list):
        raise InputError(f"{file} is not a list of narratives")
    for index, entry in enumerate(raw):
        try:
            image = images.get(int(entry["image_id"]))
            if image is None:
                report(Problem(entry["image_id"], f"narrative {index} is of a photo without annotations"))
                continue
            yield Narrative(image, index, entry["caption"], _phrases(entry, image, panoptic, index, report))
        except KeyError as error:
            raise InputError(f"{file}: narrative {index} has no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{file}: narrative {index} cannot be read ({error})") from error


def _phrases(
    entry: Mapping[str, Any],
    image: PanopticImage,
    panoptic: Panoptic,
    index: int,
    report: Callable[[Problem], None],
) -> tuple[AnnotatedPhrase, ...]:
    categories = {s.id: s.category_id for s in image.segments}
    utterances = [part["utterance"] for part in entry["segments"]]
    phrases = []
    for part, place in zip(entry["segments"], align(entry["caption"], utterances), strict=True):
        said = f"narrative {index}, utterance {part['utterance']!r}"
        if part["utterance"].strip() and (place is None or not place.exact):
            seen = f", which has {entry['caption'][place.start : place.end]!r} there" if place else ""
            report(Problem(image.id, f"{said} is not in the caption{seen}"))
        if not part["noun"] or place is None:
            continue
        ids = tuple(int(s) for s in part["segment_ids"])
        unknown = [s for s in ids if s not in categories]
        for segment in unknown:
            report(Problem(image.id, f"{said} names segment {segment}, which the photo has not"))
        if unknown:
            ids = ()
        category = panoptic.categories.get(categories[ids[-1]]) if ids else None
        isthing, absent = bool(category and category.isthing), bool(part.get("absent")) and not ids
        phrases.append(AnnotatedPhrase(place.start, place.end, ids, isthing, absent))
    return tuple(phrases)
