"""Is a data set whole? Counts of what is in it, and every problem with the image it is at."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ppmn.data.narratives import Narrative, Problem, narratives_file, read_narratives
from ppmn.data.panoptic import (
    BORDER,
    VOID,
    Category,
    Panoptic,
    PanopticImage,
    read_ids,
    read_panoptic,
    splits,
)
from ppmn.errors import InputError
from ppmn.images import read_image

COUNTS = ("images", "segments", "narratives", "noun phrases", "grounded")
KINDS = ("singular", "plural", "things", "stuff", "grounded segments")


@dataclass
class Report:
    """What `ppmn data check` found in one split."""

    split: str
    narrated: bool
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    def table(self) -> str:
        """Counts, with averages over all narratives beside them."""
        names = COUNTS + KINDS if self.narrated else COUNTS[:2]
        lines = [f"{self.split:<24}{'count':>10}" + f"{'a narrative':>14}" * self.narrated]
        for name in names:
            line = f"{name:<24}{self.counts[name]:>10,}"
            if name in names[3:] and self.counts["narratives"]:
                line += f"{self.counts[name] / self.counts['narratives']:>14.2f}"
            lines.append(line)
        return "\n".join([*lines, f"{'problems':<24}{len(self.problems):>10,}"])


def check(root: Path, split: str | None = None) -> list[Report]:
    """Check one split of a folder, or all of them: annotations, narratives where there are any, and files."""
    annotated = splits(root)
    for file in sorted((root / "annotations").glob("png_coco_*.json")):
        name = file.stem.removeprefix("png_coco_")
        if name not in annotated and not name.endswith("_dataloader"):  # which the released code writes
            raise InputError(f"{file} has no annotations beside it: panoptic_{name}.json is missing")
    return [_check(root, name) for name in ([split] if split else annotated)]


def _check(root: Path, split: str) -> Report:
    panoptic = read_panoptic(root, split)
    report = Report(split, narratives_file(root, split).is_file())
    report.counts["images"] = len(panoptic.images)
    report.counts["segments"] = sum(len(image.segments) for image in panoptic.images)
    report.problems += _annotations(panoptic)
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda image: list(_files(image)), panoptic.images)
        for problems in tqdm(found, split, len(panoptic.images), unit="photo", leave=False, disable=None):
            report.problems += problems
    if report.narrated:
        _count(report, list(read_narratives(panoptic, report.problems.append)))
    return report


def _count(report: Report, narratives: list[Narrative]) -> None:
    phrases = [(n.image.id, p) for n in narratives for p in n.phrases]
    grounded = [(image, p) for image, p in phrases if p.segment_ids]
    report.counts["narratives"] = len(narratives)
    report.counts["noun phrases"] = len(phrases)
    report.counts["grounded"] = len(grounded)
    report.counts["singular"] = sum(not p.plural for _, p in grounded)
    report.counts["plural"] = sum(p.plural for _, p in grounded)
    report.counts["things"] = sum(p.isthing for _, p in grounded)
    report.counts["stuff"] = sum(not p.isthing for _, p in grounded)
    report.counts["grounded segments"] = len({(image, s) for image, p in grounded for s in p.segment_ids})


def _annotations(panoptic: Panoptic) -> Iterator[Problem]:
    for image_id in panoptic.unannotated:
        yield Problem(image_id, "the image has no annotation")
    for image_id, times in Counter(image.id for image in panoptic.images).items():
        if times > 1:
            yield Problem(image_id, f"the image is listed {times} times")
    for image in panoptic.images:
        yield from _segments(image, panoptic.categories)


def _segments(image: PanopticImage, categories: dict[int, Category]) -> Iterator[Problem]:
    for segment, times in Counter(s.id for s in image.segments).items():
        if times > 1:
            yield Problem(image.id, f"segment {segment} is listed {times} times")
    for s in image.segments:
        if s.category_id not in categories:
            yield Problem(image.id, f"segment {s.id} is of category {s.category_id}, which is not listed")


def _files(image: PanopticImage) -> Iterator[Problem]:
    """Problems of the photo and of the panoptic PNG, down to their pixels."""
    size = (image.height, image.width)
    for file in (image.file, image.segmentation):
        if not file.is_file():
            yield Problem(image.id, f"{file} is missing")
    try:
        if image.file.is_file() and (found := read_image(image.file).size[::-1]) != size:
            yield Problem(image.id, f"{image.file} is {_by(found)}, the annotations say {_by(size)}")
    except InputError as error:
        yield Problem(image.id, str(error))
    try:
        ids = read_ids(image.segmentation) if image.segmentation.is_file() else None
    except InputError as error:
        yield Problem(image.id, str(error))
        return
    if ids is None:
        return
    if ids.shape != size:
        yield Problem(image.id, f"{image.segmentation} is {_by(ids.shape)}, the annotations say {_by(size)}")
        return
    areas = dict(zip(*(a.tolist() for a in np.unique(ids, return_counts=True)), strict=True))
    for s in image.segments:
        if (area := areas.pop(s.id, 0)) != s.area:
            yield Problem(image.id, f"segment {s.id} has {area} pixels, the annotations say {s.area}")
    for unknown in areas.keys() - {VOID, BORDER}:
        yield Problem(image.id, f"{image.segmentation} has segment {unknown}, which the annotations have not")


def _by(size: tuple[int, ...]) -> str:
    return f"{size[1]} x {size[0]}"
