"""Checks of a data set: counts of what is in it, and every problem with the image it belongs to."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ppmn.data.narratives import DataProblem, Narrative, narratives_file, read_narratives
from ppmn.data.panoptic import IGNORE_ID, UNLABELED, Panoptic, PanopticImage, read_panoptic, splits
from ppmn.errors import InputError
from ppmn.images import read_image, rgb_to_ids
from ppmn.types import SegmentIds

_TOTALS = ("images", "segments", "narratives")
_AVERAGED = ("noun phrases", "grounded", "singular", "plural", "things", "stuff", "grounded segments")


@dataclass
class CheckReport:
    """What a check found in one split."""

    split: str
    has_narratives: bool
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[DataProblem] = field(default_factory=list)

    def table(self) -> str:
        """Counts, and averages per narrative beside them."""
        names = _TOTALS + _AVERAGED if self.has_narratives else _TOTALS[:2]
        lines = [f"{self.split:<24}{'count':>10}" + f"{'per narrative':>15}" * self.has_narratives]
        for name in names:
            line = f"{name:<24}{self.counts[name]:>10,}"
            if name in _AVERAGED and self.counts["narratives"]:
                line += f"{self.counts[name] / self.counts['narratives']:>15.2f}"
            lines.append(line)
        return "\n".join([*lines, f"{'problems':<24}{len(self.problems):>10,}"])


def check(root: Path, split: str | None = None) -> list[CheckReport]:
    """Check one split of a folder or all of them: annotations, narratives where there are any, and files."""
    annotated = splits(root)
    for file in sorted((root / "annotations").glob("png_coco_*.json")):
        name = file.stem.removeprefix("png_coco_")
        if name not in annotated and not name.endswith("_dataloader"):  # a file of the authors' code
            raise InputError(f"{file} has no annotations beside it: panoptic_{name}.json is missing")
    return [_check_split(root, name) for name in ([split] if split else annotated)]


def _check_split(root: Path, split: str) -> CheckReport:
    panoptic = read_panoptic(root, split)
    report = CheckReport(split, narratives_file(root, split).is_file())
    report.counts["images"] = len(panoptic.images)
    report.counts["segments"] = sum(len(image.segments) for image in panoptic.images)
    report.problems += _annotation_problems(panoptic)
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda image: list(_file_problems(image)), panoptic.images)
        progress = tqdm(found, split, len(panoptic.images), unit="image", leave=False, disable=None)
        for image, problems in zip(panoptic.images, progress, strict=True):
            report.problems += [DataProblem(image.id, text) for text in problems]
    if report.has_narratives:
        _count(report, list(read_narratives(panoptic, report.problems.append)))
    return report


def _count(report: CheckReport, narratives: list[Narrative]) -> None:
    phrases = [(n.image.id, p) for n in narratives for p in n.phrases]
    grounded = [(image, p) for image, p in phrases if p.segment_ids]
    report.counts["narratives"] = len(narratives)
    report.counts["noun phrases"] = len(phrases)
    report.counts["grounded"] = len(grounded)
    report.counts.update("plural" if p.plural else "singular" for _, p in grounded)
    report.counts.update("things" if p.isthing else "stuff" for _, p in grounded)
    report.counts["grounded segments"] = len({(image, s) for image, p in grounded for s in p.segment_ids})


def _annotation_problems(panoptic: Panoptic) -> Iterator[DataProblem]:
    for image_id in panoptic.unannotated:
        yield DataProblem(image_id, "the image has no annotation")
    for image_id in panoptic.unlisted:
        yield DataProblem(image_id, "the image is annotated but not listed")
    for image_id in panoptic.repeated:
        yield DataProblem(image_id, "the image has several annotations, of which the last is read")
    for image_id, times in Counter(image.id for image in panoptic.images).items():
        if times > 1:
            yield DataProblem(image_id, f"the image is listed {times} times")
    for image in panoptic.images:
        for segment, times in Counter(s.id for s in image.segments).items():
            if times > 1:
                yield DataProblem(image.id, f"segment {segment} is listed {times} times")
        for s in image.segments:
            if s.category_id not in panoptic.categories:
                text = f"segment {s.id} is of category {s.category_id}, which is not listed"
                yield DataProblem(image.id, text)


def _file_problems(image: PanopticImage) -> Iterator[str]:
    """Problems of the image file and of the panoptic PNG, including their pixels."""
    for file in (image.file, image.segmentation):
        try:
            content = read_image(file)
        except InputError as error:
            yield str(error)
            continue
        if content.size != (image.width, image.height):
            found = f"{content.width} x {content.height}"
            yield f"{file} is {found}, the annotations say {image.width} x {image.height}"
        elif file == image.segmentation:
            yield from _pixel_problems(image, rgb_to_ids(np.asarray(content)))


def _pixel_problems(image: PanopticImage, ids: SegmentIds) -> Iterator[str]:
    areas = dict(zip(*(a.tolist() for a in np.unique(ids, return_counts=True)), strict=True))
    for s in image.segments:
        if (area := areas.pop(s.id, 0)) != s.area:
            yield f"segment {s.id} has {area} pixels, the annotations say {s.area}"
    for extra in areas.keys() - {UNLABELED, IGNORE_ID}:
        yield f"{image.segmentation} has segment {extra}, which is not in the annotations"
