"""One line per phrase about held-out images: what the model says, and what is true; see calibrate.py."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tqdm import tqdm

import ppmn
from experiments.measure_words import expression_probes
from experiments.probes import Probe, by_image_and_caption, held_out_sources, limited
from ppmn.data.panoptic import IGNORE_ID
from ppmn.evaluation.metrics import iou
from ppmn.evaluation.selection import read_segment_ids
from ppmn.files import replacing
from ppmn.grounding.answers import postprocess_maps
from ppmn.grounding.calibration import map_features
from ppmn.grounding.grounder import Grounder

_PER_IMAGE = 4  # phrases that people wrote


@dataclass(frozen=True)
class AnswerRow:
    """One phrase: the row of its probe, whether it is in the image, its map, and the IoU of its mask."""

    row: str
    image: str  # the file's name without its suffix
    present: bool
    features: list[float]  # MAP_FEATURES
    presence: float | None  # the logit of the network
    empty: bool  # no pixel is above the threshold
    iou: float


def people_probes(root: Path, images: int, seed: int) -> list[Probe]:
    """What people wrote to tell objects apart, up to four phrases per image, of so many images."""
    rng, by_image = np.random.default_rng(seed), defaultdict(list)
    for panoptic in held_out_sources(root, ["refcoco"]):
        for probe in expression_probes(panoptic):
            by_image[probe.image.file].append(probe)
    chosen = [mine[n] for mine in by_image.values() for n in rng.permutation(len(mine))[:_PER_IMAGE]]
    return limited(chosen, images, seed)


def collect(model: str, probes: Sequence[Probe], file: Path, *, processes: int) -> None:
    """Measure every probe, images shared by processes, and write the rows."""
    by_image: dict[Path, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_image[probe.image.file].append(probe)
    groups = list(by_image.values())
    threads = max(1, (os.cpu_count() or 1) // processes)
    parts = [(model, groups[n::processes], threads, n == 0) for n in range(processes)]
    if processes == 1:
        found = [_measure_part(*parts[0])]
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            found = list(pool.map(_measure_part, *zip(*parts, strict=True)))
    with replacing(file) as part:
        lines = (json.dumps(asdict(row)) + "\n" for rows in found for row in rows)
        part.write_text("".join(lines), encoding="utf-8")


def read_rows(file: Path) -> list[AnswerRow]:
    """The rows of a file."""
    return [AnswerRow(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _measure_part(model: str, groups: Sequence[list[Probe]], threads: int, shown: bool) -> list[AnswerRow]:
    grounder = ppmn.load(model, threads=threads)
    progress = tqdm(groups, grounder.name, unit="image", disable=None if shown else True)
    return [row for mine in progress for row in measure_image(grounder, mine)]


def measure_image(grounder: Grounder, probes: Sequence[Probe]) -> Iterator[AnswerRow]:
    """The rows of one image, which is encoded once, as is every caption."""
    encoded = grounder.encode(probes[0].image.file)
    ids = read_segment_ids(probes[0].image)
    (captions,) = by_image_and_caption(probes).values()
    for caption, numbers in captions.items():
        mine = [probes[number] for number in numbers]
        evidence = encoded.maps(caption, [probe.span for probe in mine]).evidence()
        maps = postprocess_maps(evidence.responses, grounder.runtime.config)
        features = map_features(evidence, maps, grounder.threshold)
        for number, probe in enumerate(mine):
            mask = encoded.geometry.mask(maps[number], grounder.threshold)
            truth = np.isin(ids, probe.segment_ids)
            yield AnswerRow(
                probe.row,
                probe.image.file.stem,
                bool(probe.segment_ids),
                features[number].tolist(),
                None if evidence.presence is None else float(evidence.presence[number]),
                not mask.any(),
                iou(mask & (ids != IGNORE_ID), truth) if truth.any() else 0.0,
            )
