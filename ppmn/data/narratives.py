"""The narratives of one split, read from `png_coco_<split>.json` beside the panoptic annotations."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppmn.data.align import align
from ppmn.data.panoptic import Panoptic, PanopticImage
from ppmn.errors import InputError
from ppmn.files import existing_file, read_json


@dataclass(frozen=True, slots=True)
class AnnotatedPhrase:
    """A noun phrase of a narrative: characters `start` to `end` of the caption, and its segments."""

    start: int
    end: int
    segment_ids: tuple[int, ...]  # empty: not grounded
    isthing: bool  # category of the last segment, as in the authors' reader
    absent: bool = False  # what it names is not in the image: its mask is empty

    @property
    def plural(self) -> bool:
        return len(self.segment_ids) > 1


@dataclass(frozen=True)
class Narrative:
    """One caption of one image; `index` is its position in the file it was read from."""

    image: PanopticImage
    index: int
    caption: str
    phrases: tuple[AnnotatedPhrase, ...]  # every noun phrase, grounded or not, in the order of the file

    @property
    def grounded(self) -> tuple[AnnotatedPhrase, ...]:
        return tuple(p for p in self.phrases if p.segment_ids)


@dataclass(frozen=True)
class DataProblem:
    """What is wrong in a data set, and at which image."""

    image_id: int | str
    text: str


_Report = Callable[[DataProblem], None]


def narratives_file(root: Path, split: str) -> Path:
    """`png_coco_<split>.json`, in `annotations/` or beside it."""
    files = [root / "annotations" / f"png_coco_{split}.json", root / f"png_coco_{split}.json"]
    return next((f for f in files if f.is_file()), files[0])


def read_narratives(panoptic: Panoptic, report: _Report) -> Iterator[Narrative]:
    """Every narrative of a split whose image is annotated; problems are reported.

    A phrase with a segment that its image does not have counts as not grounded, since its mask is
    unknown; a phrase of which nothing is in the caption is left out.
    """
    root, split = panoptic.root, panoptic.split
    file = existing_file(narratives_file(root, split), f"{root} has no narratives of split {split!r}")
    raw = read_json(file)
    images = {image.id: image for image in panoptic.images}
    if not isinstance(raw, list):
        raise InputError(f"{file} is not a list of narratives")
    for index, entry in enumerate(raw):
        try:
            image = images.get(int(entry["image_id"]))
            if image:
                phrases = _phrases(entry, image, panoptic, index, report)
                yield Narrative(image, index, entry["caption"], phrases)
            else:
                text = f"narrative {index} is of an image without annotations"
                report(DataProblem(entry["image_id"], text))
        except KeyError as error:
            raise InputError(f"{file}: narrative {index} has no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{file}: narrative {index} cannot be read ({error})") from error


def _phrases(
    entry: Mapping[str, Any], image: PanopticImage, panoptic: Panoptic, index: int, report: _Report
) -> tuple[AnnotatedPhrase, ...]:
    category_ids = {s.id: s.category_id for s in image.segments}
    utterances = [part["utterance"] for part in entry["segments"]]
    phrases = []
    for part, match in zip(entry["segments"], align(entry["caption"], utterances), strict=True):
        where = f"narrative {index}, utterance {part['utterance']!r}"
        if part["utterance"].strip() and (match is None or not match.exact):
            instead = f", which has {entry['caption'][match.start : match.end]!r} there" if match else ""
            report(DataProblem(image.id, f"{where} is not in the caption{instead}"))
        if not part["noun"] or match is None:
            continue
        ids = tuple(int(s) for s in part["segment_ids"])
        missing = [s for s in ids if s not in category_ids]
        for segment in missing:
            report(DataProblem(image.id, f"{where} names segment {segment}, which the image does not have"))
        if missing:
            ids = ()
        category = panoptic.categories.get(category_ids[ids[-1]]) if ids else None
        isthing = bool(category and category.isthing)
        absent = bool(part.get("absent")) and not ids
        phrases.append(AnnotatedPhrase(match.start, match.end, ids, isthing, absent))
    return tuple(phrases)
