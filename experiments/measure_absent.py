"""Absent phrases: how many are caught when 5 % of the present ones are lost, on held-out images.

python -m experiments.measure_absent --model compact [--model DIR] --data-root PHOTOS [--phrases 1000]

Categories: on images of sources that annotate everything they list, nouns of present categories against
nouns of absent ones, half of these drawn at random, half the nearest to a present category by the mean of
the word vectors of the included text encoder. Swapped: the phrases of an image's narrative against those
of another image's narrative whose categories are absent. Caught and lost by default: the answer has no mask.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import ppmn
from experiments import probes as shared
from experiments.probes import Probe
from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import Panoptic, PanopticImage
from ppmn.evaluation.selection import generated_narrative
from ppmn.grounding.grounder import Grounder
from ppmn.model.text import TextEncoder
from ppmn.synthetic.narrator import Narrator
from ppmn.synthetic.nouns import Lexicon, NounForm, Word

SOURCES = ("coco_panoptic", "coco_things", "coco_instances", "coco_people", "ade")
LOST = 0.05  # share of the present phrases that may be lost
ROWS = {"random": "present", "nearest": "present", "swapped": "own"}  # absent phrases, and their present ones


@dataclass(frozen=True)
class Score:
    """One phrase: the row of its probe, its image, and how sure the model is that it is there.

    `value` is its presence, or the mean response inside the mask where a model does not say presence; 0
    where no response is above the threshold.
    """

    row: str
    image: Path
    value: float
    empty: bool = False  # the answer has no mask, with the model's own settings


class Absentees:
    """Nouns of the categories of one source that an image has or has not."""

    def __init__(self, panoptic: Panoptic, encoder: TextEncoder) -> None:
        self.lexicon = Lexicon(panoptic.categories)
        self.names = self.lexicon.names
        self.means = {
            id: self.lexicon.category_ids(Word(name, NounForm.SINGULAR)) | {id}
            for id, name in self.names.items()
        }
        ids = [encoder.tokenize(name, []).ids for name in self.names.values()]
        with torch.inference_mode():
            means = [words.mean(0) for words in encoder.encode(ids)]
        self.vectors = {
            id: (mean / mean.norm()).cpu().numpy() for id, mean in zip(self.names, means, strict=True)
        }

    def probes(self, image: PanopticImage, rng: np.random.Generator, count: int) -> Iterator[Probe]:
        """So many random absent categories, as many nearest ones, and as many present ones as both."""
        here = sorted({s.category_id for s in image.segments} & set(self.names))
        absent = [id for id in sorted(self.names) if not self.means[id] & set(here)]
        if not here or len(absent) < 2 * count:
            return
        chosen: dict[int, str] = {}
        for id in rng.choice(here, count):
            free = [other for other in absent if other not in chosen]
            chosen[max(free, key=lambda other: float(self.vectors[id] @ self.vectors[other]))] = "nearest"
        free = [other for other in absent if other not in chosen]
        chosen |= {int(id): "random" for id in rng.choice(free, count, replace=False)}
        present = {int(id): "present" for id in rng.permutation(here)[: 2 * count]}
        for id, row in (chosen | present).items():
            meant = tuple(s.id for s in image.segments if s.category_id in self.means[id])
            yield Probe(image, self.names[id], (0, len(self.names[id])), meant, row)


def swapped_probes(narratives: Sequence[Narrative]) -> Iterator[Probe]:
    """Every narrative on its own image; and on the next one, those of its phrases that are not in it."""
    for own, other in zip(narratives, [*narratives[1:], *narratives[:1]], strict=True):
        categories = {s.id: s.category_id for s in own.image.segments}
        present = {s.category_id for s in other.image.segments}
        for phrase in own.grounded:
            span = (phrase.start, phrase.end)
            yield Probe(own.image, own.caption, span, phrase.segment_ids, "own")
            if not {categories[s] for s in phrase.segment_ids} & present:
                yield Probe(other.image, own.caption, span, (), "swapped")


def make_probes(args: argparse.Namespace) -> list[Probe]:
    """All probes of the images that are measured."""
    sources = shared.held_out_sources(args.data_root, SOURCES)
    files = [Probe(i, "", (0, 0), (), "") for panoptic in sources for i in panoptic.images if i.segments]
    kept = {p.image.file for p in shared.limited(files, args.images, args.seed)}
    count = max(1, -(-args.phrases // (2 * len(kept))))
    encoder = ppmn.load("compact", runtime="torch").model.text_encoder
    probes: list[Probe] = []
    for panoptic in sources:
        absentees = Absentees(panoptic, encoder)
        for image in panoptic.images:
            if image.file in kept:
                rng = np.random.default_rng((args.seed, image.id))
                probes += absentees.probes(image, rng, count)
        narrator = Narrator(panoptic.categories, complete=panoptic.complete)
        narratives = (
            generated_narrative(narrator, image, image.id, args.seed)
            for image in panoptic.images
            if image.file in kept
        )
        probes += swapped_probes([narrative for narrative in narratives if narrative.phrases])
    return probes


def score(grounder: Grounder, probes: Sequence[Probe]) -> list[Score]:
    """The answer to every probe; each image is encoded once, and its phrases of one caption together."""
    images = shared.by_image_and_caption(probes)
    found = []
    for file, captions in tqdm(images.items(), grounder.name, unit="image", disable=None):
        encoded = grounder.encode(file)
        for caption, numbers in captions.items():
            mine = [probes[number] for number in numbers]
            answers = encoded.ground(caption, spans=[p.span for p in mine])
            for probe, phrase in zip(mine, answers, strict=True):
                drawn = phrase.absent or phrase.area > 0
                value = phrase.mean_response if phrase.presence is None else phrase.presence * drawn
                found.append(Score(probe.row, file, value, not phrase.area))
    return found


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """For every row of absent phrases: the percentage caught at 5 % lost, by default, and the whole curve."""
    rows: dict[str, Any] = {}
    groups: Mapping[str, tuple[str, ...]] = {"categories": ("random", "nearest")} | {r: (r,) for r in ROWS}
    for name, members in groups.items():
        absent = [s for s in scores if s.row in members]
        own = [s for s in scores if s.row == ROWS[members[0]]]
        present = np.sort([s.value for s in own])
        if not absent or not len(present):
            continue
        threshold = present[int(LOST * len(present))]
        values = np.array([s.value for s in absent])
        caught = shared.percentage([bool(c) for c in values < threshold], [s.image for s in absent])
        steps = [min(int(lost / 100 * len(present)), len(present) - 1) for lost in range(101)]
        curve = [
            {
                "threshold": float(present[step]),
                "lost": 100 * float(np.mean(present < present[step])),
                "caught": 100 * float(np.mean(values < present[step])),
            }
            for step in steps
        ]
        rows[name] = {
            "threshold": float(threshold),
            "present": len(present),
            "caught": caught,
            "default": {
                "lost": 100 * float(np.mean([s.empty for s in own])),
                "caught": 100 * float(np.mean([s.empty for s in absent])),
            },
            "curve": curve,
        }
    return rows


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--phrases", type=int, default=1000, help="at least so many absent categories")

    args = shared.parse_arguments(__doc__, add)
    probes = make_probes(args)
    results = {
        name: summary(score(grounder, probes)) for name, grounder in shared.load_models(args.model).items()
    }
    rows = [
        [
            name,
            row,
            shared.cell(r["caught"]),
            f"{r['default']['caught']:.1f} %, {r['default']['lost']:.1f} %",
            f"{r['caught']['count']:,}",
            f"{r['present']:,}",
        ]
        for name, measured in results.items()
        for row, r in measured.items()
    ]
    caught = f"caught at {100 * LOST:g} % of present lost"
    header = ["model", "absent phrases", caught, "caught and lost by default", "absent", "present"]
    print(shared.show(header, rows))
    shared.write(args.json, {"sources": SOURCES, "seed": args.seed, "models": results})


if __name__ == "__main__":
    main()
