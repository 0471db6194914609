"""Stage one by itself: how many of the annotated segments it proposes, by size, and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import PanopticImage
from ppmn.evaluation.comparison import HIT
from ppmn.evaluation.figures import SheetRow, sheet
from ppmn.evaluation.region_rows import image_regions, two_stage_of
from ppmn.evaluation.selection import read_segment_ids
from ppmn.grounding.grounder import Grounder
from ppmn.images import read_image
from ppmn.types import Mask

SIZES = {"under 1 %": 0.01, "1 to 10 %": 0.1, "over 10 %": 1.01}  # upper bounds, fractions of the image


@dataclass
class ProposalReport:
    """Segments and those found, by size, and the number of regions of each image."""

    segments: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 0))
    found: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 0))
    regions: list[int] = field(default_factory=list)

    def add(self, truth: Sequence[Mask], regions: Sequence[Mask]) -> None:
        """Count one image."""
        self.regions.append(len(regions))
        for mask in truth:
            size = next(name for name, bound in SIZES.items() if mask.mean() < bound)
            self.segments[size] += 1
            self.found[size] += any(_iou(mask, region) > HIT for region in regions)

    def table(self) -> str:
        """As Markdown."""
        rows = [*SIZES, "all"]
        counts = [*self.segments.values(), sum(self.segments.values())]
        found = [*self.found.values(), sum(self.found.values())]
        lines = ["| segment | number | found at IoU 0.5 |", "|---|---|---|"]
        lines += [
            f"| {row} | {number:,} | {100 * hits / number:.1f} % |" if number else f"| {row} | 0 | - |"
            for row, number, hits in zip(rows, counts, found, strict=True)
        ]
        mean = np.mean(self.regions) if self.regions else 0
        return "\n".join([*lines, "", f"{mean:.1f} regions per image, {len(self.regions):,} images.", ""])


def measure_proposals(
    grounder: Grounder, sources: Mapping[str, Sequence[Narrative]], picture: Path | None = None, rows: int = 6
) -> ProposalReport:
    """Count what stage one of a two-stage system proposes; each image once, the first few drawn."""
    two_stage_of(grounder)
    images: dict[Path, PanopticImage] = {n.image.file: n.image for s in sources.values() for n in s}
    report, drawn = ProposalReport(), list[SheetRow]()
    for annotation in images.values():
        image, ids = read_image(annotation.file), read_segment_ids(annotation)
        regions = image_regions(grounder, image)
        truth = [ids == segment.id for segment in annotation.segments]
        report.add([mask for mask in truth if mask.any()], regions)
        if len(drawn) < rows:
            drawn.append(SheetRow(image, annotation.file.name, [], truth, regions, f"{len(regions)} regions"))
    if picture is not None:
        sheet(drawn, picture)
    return report


def _iou(a: Mask, b: Mask) -> float:
    union = np.count_nonzero(a | b)
    return np.count_nonzero(a & b) / union if union else 0.0
