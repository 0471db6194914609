"""Choose how the last two maps of a model that points become a mask, on held-out images.

python -m experiments.measure_masks MODEL --data-root PHOTOS [--sides 588x784 ...] [--draws 1 8 ...]

Every rule is measured on the same phrases: those of two generated narratives of each image (of Flickr the
captions by people), by Average Recall (full) in all and by split, and expressions of RefCOCO, by the share
whose mask has an IoU of at least 0.5. The maps are the last LCPA round's and the drawn one, cut at the
model's own threshold with its hysteresis peak. Differences to the first rule are paired, with 95 %
intervals over images.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from experiments import probes as shared
from experiments.measure_compact import load_mean
from ppmn.config import ModelConfig
from ppmn.data.narratives import AnnotatedPhrase, Narrative, narratives_file
from ppmn.data.panoptic import IGNORE_ID, DataSpec, Panoptic
from ppmn.evaluation.evaluate import instance_split, open_narratives_of
from ppmn.evaluation.metrics import bootstrap, iou
from ppmn.evaluation.selection import generated_narrative, read_segment_ids
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import postprocess
from ppmn.grounding.runtime import RawMaps
from ppmn.synthetic.narrator import Narrator
from ppmn.types import Map

SOURCES = ("coco_panoptic", "coco_things", "coco_people", "coco_instances", "flickr", "ade")
PER_SOURCE = (1, 1, 1, 1, 0.5, 0.5)  # relative numbers of images
SEEDS = (11, 12)  # of the two narratives
PER_SEGMENT = 2  # expressions
CERTAINTIES = (0.2, 0.3, 0.4, 0.5)
RELATIVE_THRESHOLDS = (0.35, 0.4, 0.5)


@dataclass(frozen=True)
class Rule:
    """Which map is cut, and how."""

    map: str  # "last round", "drawn", "mean", or "certain"
    certainty: float  # below which "certain" takes the last round's map
    relative_threshold: float

    def __str__(self) -> str:
        at = f" from {self.certainty:g}" if self.map == "certain" else ""
        return f"{self.map}{at}, relative threshold {self.relative_threshold:g}"

    def responses(self, maps: RawMaps) -> Map:
        """The probabilities of phrases, before post-processing."""
        drawn, before = maps.probabilities(-1), maps.probabilities(-2)
        if self.map == "mean":
            return np.asarray((drawn + before) / 2, np.float32)
        if self.map == "certain" and maps.certainty is not None:
            certain = maps.certainty >= self.certainty
            return np.where(certain[:, None, None], drawn, before)
        return drawn if self.map == "drawn" else before


MAPS = {"drawn": (0.0,), "certain": CERTAINTIES, "mean": (0.0,), "last round": (0.0,)}
RULES = [
    Rule(name, certainty, relative)
    for name, certainties in MAPS.items()
    for certainty, relative in product(certainties, RELATIVE_THRESHOLDS)
]


@dataclass(frozen=True)
class Measured:
    """One phrase: its image, the rows that it counts in, and the IoU of every rule."""

    image: str
    rows: tuple[str, ...]
    ious: list[float]


def narratives(panoptic: Panoptic, images: int, seed: int) -> Iterator[Narrative]:
    """The narratives of so many held-out images of a source: given ones, or two generated ones each."""
    rng = np.random.default_rng(seed)
    chosen = [panoptic.images[int(i)] for i in rng.permutation(len(panoptic.images))[:images]]
    if narratives_file(panoptic.root, panoptic.split).is_file():
        files = {image.file for image in chosen}
        for given in open_narratives_of([DataSpec(panoptic.root, panoptic.split)], "validation").values():
            yield from (n for n in given if n.image.file in files and n.grounded)
        return
    narrator = Narrator(panoptic.categories, complete=panoptic.complete)
    for image, number in product(chosen, SEEDS):
        narrative = generated_narrative(narrator, image, image.id, number)
        if narrative.phrases:
            yield narrative


def expressions(panoptic: Panoptic, images: int, seed: int) -> Iterator[Narrative]:
    """Expressions of so many images, each as a caption that is one phrase."""
    rng = np.random.default_rng(seed)
    for index in rng.permutation(len(panoptic.images))[:images]:
        image = panoptic.images[int(index)]
        for segment in image.segments:
            for n in rng.permutation(len(segment.expressions))[:PER_SEGMENT]:
                text = segment.expressions[int(n)]
                phrase = AnnotatedPhrase(0, len(text), (segment.id,), True)
                yield Narrative(image, 0, text, (phrase,))


def rows_of(narrative: Narrative, phrase: AnnotatedPhrase, expression: bool) -> tuple[str, ...]:
    """The rows of the table that a phrase counts in."""
    if expression:
        return ("expressions found",)
    split = instance_split(phrase, narrative.image)
    return tuple(
        name
        for name, counted in (
            ("overall", True),
            ("alone", split == "things_alone"),
            ("among", split == "things_among"),
            ("stuff", not phrase.isthing),
            ("plurals", phrase.plural),
        )
        if counted
    )


def measure(
    model: str, sides: str, draws: int | None, captions: Sequence[Narrative], expression: bool
) -> list[Measured]:
    """Every phrase under every rule; captions of one image follow each other."""
    torch.set_num_threads(1)
    network = load_mean(model, sides)
    if network.head.pointing is None:
        raise SystemExit(f"{model} does not point")
    network.head.pointing.draws = draws or network.head.pointing.draws
    grounder = Grounder(network, device="cpu")
    config, found = network.config, []
    encoded, file = None, None
    for narrative in captions:
        if encoded is None or file != narrative.image.file:
            file = narrative.image.file
            encoded, ids = grounder.encode(file), read_segment_ids(narrative.image)
        phrases = narrative.grounded
        maps = encoded.maps(narrative.caption, [(p.start, p.end) for p in phrases])
        truths = [np.isin(ids, phrase.segment_ids) for phrase in phrases]
        ious = []
        for rule in RULES:
            responses = _postprocess(rule.responses(maps), rule, config)
            masks = (encoded.geometry.mask(r, config.threshold) & (ids != IGNORE_ID) for r in responses)
            ious.append([iou(mask, truth) for mask, truth in zip(masks, truths, strict=True)])
        for phrase, values in zip(phrases, zip(*ious, strict=True), strict=True):
            found.append(Measured(file.stem, rows_of(narrative, phrase, expression), list(values)))
    return found


def _postprocess(responses: Map, rule: Rule, config: ModelConfig) -> Map:
    return postprocess(
        responses,
        threshold=config.threshold,
        relative_threshold=rule.relative_threshold,
        hysteresis_peak=config.hysteresis_peak,
    )


def cell(found: Sequence[Measured], row: str, rule: int) -> str:
    """The mean of a rule in a row of phrases."""
    values = np.array([m.ious[rule] for m in found if row in m.rows])
    if not len(values):
        return "-"
    return f"{100 * (values >= 0.5).mean() if row == 'expressions found' else 100 * values.mean():.1f}"


def difference(found: Sequence[Measured], rule: int) -> str:
    """The paired difference of Average Recall to the first rule."""
    mine = [m for m in found if "overall" in m.rows]
    value = bootstrap([100 * (m.ious[rule] - m.ious[0]) for m in mine], [m.image for m in mine])
    return f"{value.mean:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"


def report(found: Sequence[Measured]) -> str:
    """A table of all rules."""
    rows = ("overall", "alone", "among", "stuff", "plurals", "expressions found")
    counts = [f"{row} ({sum(row in m.rows for m in found)})" for row in rows]
    lines = [
        [str(rule), *(cell(found, row, number) for row in rows), difference(found, number)]
        for number, rule in enumerate(RULES)
    ]
    return shared.show(["rule", *counts, "to the first rule"], lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="names or folders of models; A+B is their mean")
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--sides", nargs="+", default=["588x784"], help="short and long side of images")
    draws = "most probable tokens that maps are drawn from (default: the model's own number)"
    parser.add_argument("--draws", type=int, nargs="+", default=[None], help=draws)
    parser.add_argument("--images", type=int, default=80, help="with narratives, about (default: 80)")
    parser.add_argument("--referring", type=int, default=40, help="with expressions (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal results (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="that share the images (default: 2)")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    shares = np.array(PER_SOURCE) / sum(PER_SOURCE)
    captions = [
        narrative
        for panoptic, share in zip(shared.held_out_sources(args.data_root, SOURCES), shares, strict=True)
        for narrative in narratives(panoptic, round(share * args.images), args.seed)
    ]
    (refcoco,) = shared.held_out_sources(args.data_root, ["refcoco"])
    asked = list(expressions(refcoco, args.referring, args.seed))
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        for model, sides, draws in product(args.models, args.sides, args.draws):
            parts = []
            for several, expression in ((captions, False), (asked, True)):
                files = sorted({n.image.file for n in several})
                for process in range(args.processes):
                    own = set(files[process :: args.processes])
                    mine = sorted((n for n in several if n.image.file in own), key=lambda n: n.image.file)
                    parts.append(pool.submit(measure, model, sides, draws, mine, expression))
            found = [measured for part in parts for measured in part.result()]
            drawn = f", {draws} draws" if draws else ""
            print(f"{model} at {sides}{drawn}\n{report(found)}\n", flush=True)


if __name__ == "__main__":
    main()
