"""Expressions by which people tell one object from others: how often a model finds the object that is meant.

Each expression is a caption of its own and the only phrase in it. Beside the model stands the baseline
`largest`: the true mask of the largest described object of the same category in the image.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from ppmn.data.panoptic import IGNORE_ID, DataSpec, PanopticImage, Segment, named_splits, read_panoptic
from ppmn.data.partition import SplitPart, in_part
from ppmn.distributed import gather_objects, is_main_process, process_count, process_rank
from ppmn.errors import InputError
from ppmn.evaluation.metrics import bootstrap, iou
from ppmn.evaluation.selection import read_segment_ids
from ppmn.grounding.grounder import Grounder
from ppmn.types import Box, Mask

REFERRING_PLACES = {
    "left", "leftmost", "lefthand", "right", "rightmost", "righthand",
    "middle", "center", "centre", "central", "corner",
    "top", "topmost", "upper", "uppermost", "bottom", "bottommost", "lower", "lowermost",
    "front", "foreground", "back", "background", "rear",
    "far", "farther", "farthest", "further", "furthest",
    "near", "nearer", "nearest", "close", "closer", "closest",
}  # fmt: skip
UNKNOWN_CATEGORY = 0  # of objects whose category is not known: the baseline leaves them out
_HIT = 0.5  # the IoU from which an object counts as found
_ROWS = {"overall": "all expressions", "place_words": "with place words"}


@dataclass(frozen=True)
class ExpressionScore:
    """One expression, and the IoU of the predicted and of the baseline's mask and box with the true ones."""

    source: str
    image: int
    segment: int
    expression: str
    mask_iou: float
    box_iou: float
    largest_mask_iou: float | None  # None where the category is not known
    largest_box_iou: float | None

    @property
    def has_place_word(self) -> bool:
        return bool(REFERRING_PLACES & set(re.findall(r"[a-z]+", self.expression.lower())))


def open_referring(specs: Sequence[DataSpec], part: SplitPart = "all") -> dict[str, list[PanopticImage]]:
    """The images of every split that is meant that have expressions, by `folder:split`."""
    sources: dict[str, list[PanopticImage]] = {}
    for name, spec, split in named_splits(specs):
        described = [i for i in read_panoptic(spec.root, split).images if i.described]
        if not described:
            raise InputError(f"{spec.root} split {split} has no segment with expressions")
        sources[name] = [i for i in described if in_part(i, part)]
    if not any(sources.values()):
        raise InputError(f"no image of {', '.join(sources)} is in the part {part}")
    return sources


def measure_referring(
    grounder: Grounder, sources: Mapping[str, Sequence[PanopticImage]]
) -> list[ExpressionScore]:
    """Measure every expression once; the processes of a running group share the images."""
    places = [(source, image) for source, images in sources.items() for image in images]
    mine = places[process_rank() :: process_count()]
    hidden = None if is_main_process() else True  # None: shown on a terminal only
    progress = tqdm(mine, "referring", unit="image", disable=hidden, file=sys.stderr)
    found = [score for source, image in progress for score in _measure_image(grounder, source, image)]
    everything = [score for part in gather_objects(found) for score in part]
    return sorted(everything, key=lambda s: (s.source, s.image, s.segment))


def _measure_image(grounder: Grounder, source: str, image: PanopticImage) -> Iterator[ExpressionScore]:
    ids = read_segment_ids(image)
    encoded = grounder.encode(image.file)
    if (encoded.image.height, encoded.image.width) != ids.shape:
        size = f"{encoded.image.height} x {encoded.image.width}"
        raise InputError(f"{image.file} has {size} pixels, its annotation {ids.shape[0]} x {ids.shape[1]}")
    valid = ids != IGNORE_ID
    described = [s for s in image.segments if s.expressions]
    for segment in described:
        truth = ids == segment.id
        baseline = _largest(segment, described)
        largest = None if baseline is None else iou(ids == baseline.id, truth) if truth.any() else 0.0
        largest_box = None if baseline is None else box_iou(baseline.bbox, segment.bbox)
        for expression in segment.expressions:
            response = encoded.responses(expression, [(0, len(expression))])[0]
            mask = encoded.geometry.mask(response, grounder.threshold) & valid
            masks = iou(mask, truth) if truth.any() else 0.0
            boxes = box_iou(mask_box(mask), segment.bbox)
            yield ExpressionScore(
                source, image.id, segment.id, expression, masks, boxes, largest, largest_box
            )


def _largest(segment: Segment, described: Sequence[Segment]) -> Segment | None:
    if segment.category_id == UNKNOWN_CATEGORY:
        return None
    same = [s for s in described if s.category_id == segment.category_id]
    return max(same, key=lambda s: s.area)


def mask_box(mask: Mask) -> Box | None:
    """The tight box of a mask; None for an empty one."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return None
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1


def box_iou(one: Box | None, other: Box) -> float:
    """Intersection over union of two boxes; 0 if there is no box."""
    if one is None:
        return 0.0
    (x, y, w, h), (u, v, p, q) = one, other
    width, height = min(x + w, u + p) - max(x, u), min(y + h, v + q) - max(y, v)
    intersection = max(width, 0) * max(height, 0)
    return intersection / max(w * h + p * q - intersection, 1)


def referring_report(
    scores: Sequence[ExpressionScore], grounder: Grounder, part: SplitPart
) -> dict[str, Any]:
    """Percentages of the expressions whose object was found, with 95 % intervals over images."""
    rows: dict[str, Any] = {}
    known = [s for s in scores if s.largest_mask_iou is not None]
    for name, chosen, attribute in (("model", scores, ""), ("largest", known, "largest_")):
        placed = [s for s in chosen if s.has_place_word]
        rows[name] = {"overall": _row(chosen, attribute), "place_words": _row(placed, attribute)}
    return {
        "model": grounder.name,
        "threshold": grounder.threshold,
        "part": part,
        "data": sorted({s.source for s in scores}),
        "images": len({(s.source, s.image) for s in scores}),
        "referring": rows["model"],
        "largest": rows["largest"],
        "records": [asdict(s) | {"place": s.has_place_word} for s in scores],
    }


def _row(scores: Sequence[ExpressionScore], prefix: str) -> dict[str, Any]:
    row: dict[str, Any] = {"expressions": len(scores)}
    images = [(s.source, s.image) for s in scores]
    for kind in ("mask", "box"):
        hits = [100.0 * (getattr(s, f"{prefix}{kind}_iou") >= _HIT) for s in scores]
        found = bootstrap(hits, images) if hits else None
        row[kind] = found and found.mean
        row[f"{kind}_interval"] = found and [found.low, found.high]
    return row


def format_referring(report: Mapping[str, Any]) -> str:
    """A table of the percentages, with their intervals and the number of expressions."""
    part = "" if report["part"] == "all" else f", {report['part']} images"
    lines = [
        f"{report['model']} on {', '.join(report['data'])}{part}: {report['images']:,} images, "
        f"threshold {report['threshold']:g}; found = IoU of at least {_HIT}",
        f"{'':<44}{'masks found':>24}{'boxes found':>24}{'expressions':>13}",
    ]
    names = {"referring": report["model"], "largest": "largest of its category"}
    for key, name in names.items():
        for row, label in _ROWS.items():
            values = report[key][row]
            cells = [_cell(values[kind], values[f"{kind}_interval"]) for kind in ("mask", "box")]
            counted = f"{values['expressions']:>13,}"
            lines.append(f"{f'{name}, {label}':<44}" + "".join(f"{c:>24}" for c in cells) + counted)
    return "\n".join(lines)


def _cell(value: float | None, interval: Sequence[float] | None) -> str:
    return "-" if value is None or not interval else f"{value:.1f} % ({interval[0]:.1f} to {interval[1]:.1f})"
