"""Instances: how many objects of a plural are found, and how many of those found are objects.

python -m experiments.measure_instances --model compact [--model DIR] --data-root PHOTOS [--images 150]

On held-out images of sources that annotate every instance, the plural of each category with several segments
and no crowd is the caption ("dogs"). An instance is right if its IoU with one of the segments is at least
0.5; each segment counts once, the most similar pairs first. Recall is over all segments, precision over all
instances, and the panoptic quality is the sum of the IoUs of right ones over the mean number of both. Beside
them stand the connected parts of the same masks.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from experiments import probes as shared
from experiments.probes import Probe
from ppmn.data.panoptic import IGNORE_ID
from ppmn.evaluation.metrics import bootstrap, iou
from ppmn.evaluation.selection import read_segment_ids
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.instances import connected_parts
from ppmn.grounding.result import PhrasePrediction
from ppmn.synthetic.nouns import Lexicon, NounForm
from ppmn.types import Mask, SegmentIds

SOURCES = ("coco_panoptic", "coco_things", "coco_instances", "coco_people")
HIT = 0.5
WAYS = ("instances", "connected parts")


@dataclass(frozen=True)
class Matched:
    """One plural: how many objects there are, how many were found, and the IoUs of those that are right."""

    way: str
    image: Path
    true: int
    found: int
    ious: tuple[float, ...]


def plural_probes(root: Path) -> Iterator[Probe]:
    """The plural of every category that has several segments in an image and no crowd."""
    for panoptic in shared.held_out_sources(root, SOURCES):
        lexicon = Lexicon(panoptic.categories)
        for image in panoptic.images:
            by_category = defaultdict(list)
            for segment in image.segments:
                by_category[segment.category_id].append(segment)
            for id, segments in by_category.items():
                words = [w for w in lexicon.words[id] if w.form == NounForm.PLURAL]
                if len(segments) < 2 or any(s.iscrowd for s in segments) or not words:
                    continue
                text = max(words, key=lambda word: word.weight).text
                yield Probe(image, text, (0, len(text)), tuple(s.id for s in segments), "plural")


def match(found: Sequence[Mask], ids: SegmentIds, segments: Sequence[int]) -> tuple[float, ...]:
    """The IoUs of the instances that are right, each with a segment of its own."""
    truths = [ids == segment for segment in segments]
    pairs = [(iou(a, b), n, m) for n, a in enumerate(found) for m, b in enumerate(truths) if (a & b).any()]
    right: dict[int, tuple[int, float]] = {}
    for value, instance, segment in sorted(pairs, reverse=True):
        taken = {other for other, _ in right.values()}
        if value >= HIT and instance not in right and segment not in taken:
            right[instance] = (segment, value)
    return tuple(value for _, value in right.values())


def measure(grounder: Grounder, probes: Sequence[Probe]) -> Iterator[Matched]:
    """Every probe by both ways; each image is encoded once."""
    by_image: dict[Path, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_image[probe.image.file].append(probe)
    for file, mine in tqdm(by_image.items(), grounder.name, unit="image", disable=None):
        encoded, ids = grounder.encode(file), read_segment_ids(mine[0].image)
        valid = ids != IGNORE_ID
        for probe in mine:
            (phrase,) = encoded.ground(probe.caption, spans=[probe.span], keep_absent=True)
            for way, masks in zip(WAYS, (_drawn(phrase), _parts(phrase)), strict=True):
                ious = match([mask & valid for mask in masks], ids, probe.segment_ids)
                yield Matched(way, file, len(probe.segment_ids), len(masks), ious)


def _drawn(phrase: PhrasePrediction) -> list[Mask]:
    return [instance.mask for instance in phrase.instances]


def _parts(phrase: PhrasePrediction) -> list[Mask]:
    parts = connected_parts(phrase.map, phrase.threshold)
    return [phrase.geometry.mask(part, phrase.threshold) for part in parts]


def summary(rows: Sequence[Matched]) -> dict[str, Any]:
    """Recall, precision and panoptic quality in percent; the interval of recall is over images."""
    true, found = sum(r.true for r in rows), sum(r.found for r in rows)
    right, total = sum(len(r.ious) for r in rows), sum(sum(r.ious) for r in rows)
    hits = [100.0 * (n < len(r.ious)) for r in rows for n in range(r.true)]
    interval = bootstrap(hits, [r.image for r in rows for _ in range(r.true)])
    return {
        "plurals": len(rows),
        "segments": true,
        "recall": 100 * right / true,
        "recall_interval": [interval.low, interval.high],
        "precision": 100 * right / max(found, 1),
        "panoptic_quality": 100 * total / ((true + found) / 2),
        "count_right": 100 * float(np.mean([r.true == r.found for r in rows])),
    }


def main() -> None:
    args = shared.parse_arguments(__doc__, lambda parser: None)
    probes = shared.limited(list(plural_probes(args.data_root)), args.images, args.seed)
    results: dict[str, Any] = {}
    for name, grounder in shared.load_models(args.model).items():
        rows = list(measure(grounder, probes))
        results[name] = {way: summary([r for r in rows if r.way == way]) for way in WAYS}
    header = ["model", "", "recall", "precision", "panoptic quality", "count right", "plurals", "segments"]
    table = [
        [
            *(
                name,
                way,
                f"{r['recall']:.1f} % ({r['recall_interval'][0]:.1f} to {r['recall_interval'][1]:.1f})",
            ),
            *(f"{r['precision']:.1f} %", f"{r['panoptic_quality']:.1f}", f"{r['count_right']:.1f} %"),
            *(f"{r['plurals']:,}", f"{r['segments']:,}"),
        ]
        for name, ways in results.items()
        for way, r in ways.items()
    ]
    print(shared.show(header, table))
    shared.write(args.json, {"sources": SOURCES, "seed": args.seed, "models": results})


if __name__ == "__main__":
    main()
