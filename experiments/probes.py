"""What the measurements of instances, words and absent phrases share: held-out images, probes and tables."""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import ppmn
from ppmn.data.panoptic import IGNORE_ID, Panoptic, PanopticImage, read_panoptic, splits
from ppmn.data.partition import in_part
from ppmn.evaluation.metrics import bootstrap, iou
from ppmn.evaluation.selection import read_segment_ids
from ppmn.files import write_json
from ppmn.grounding.grounder import Grounder
from ppmn.types import Span


@dataclass(frozen=True)
class Probe:
    """A phrase of a caption for an image, the segments that it means, and the row that it counts in."""

    image: PanopticImage
    caption: str
    span: Span
    segment_ids: tuple[int, ...]
    row: str


def parse_arguments(description: str | None, add: Callable[[argparse.ArgumentParser], None]) -> Any:
    """The options that every measurement has, and its own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", required=True, help="name or folder; repeatable")
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--images", type=int, help="at most so many images (default: all held out)")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal results (default: 0)")
    parser.add_argument("--json", type=Path, help="write every figure")
    add(parser)
    args = parser.parse_args()
    if not args.data_root.is_dir():
        parser.error(f"{args.data_root} is not a folder")
    return args


def load_models(names: Sequence[str]) -> dict[str, Grounder]:
    """The models by the names they were given with."""
    return {name: ppmn.load(name) for name in names}


def held_out_sources(root: Path, names: Iterable[str]) -> list[Panoptic]:
    """The sources of a folder, each with its validation images only; an image is in the first that has it."""
    found, seen = [], set()
    for name in names:
        for split in splits(root / name):
            panoptic = read_panoptic(root / name, split)
            images = [i for i in panoptic.images if in_part(i, "validation") and i.file.stem not in seen]
            seen |= {i.file.stem for i in images}
            found.append(replace(panoptic, images=tuple(images)))
    return found


def limited(probes: Sequence[Probe], images: int | None, seed: int) -> list[Probe]:
    """The probes of so many images, drawn at random."""
    files = sorted({p.image.file for p in probes})
    if images is None or images >= len(files):
        return list(probes)
    drawn = np.random.default_rng(seed).choice(len(files), images, replace=False)
    chosen = {files[int(i)] for i in drawn}
    return [p for p in probes if p.image.file in chosen]


def by_image_and_caption(probes: Sequence[Probe]) -> dict[Path, dict[str, list[int]]]:
    """The numbers of the probes of each image's captions: what is computed once for several of them."""
    numbers: dict[Path, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, probe in enumerate(probes):
        numbers[probe.image.file][probe.caption].append(number)
    return numbers


def measure(grounder: Grounder, probes: Sequence[Probe]) -> list[float]:
    """The IoU of every probe with its segments; each image is encoded once."""
    ious = [0.0] * len(probes)
    for file, captions in tqdm(
        by_image_and_caption(probes).items(), grounder.name, unit="image", disable=None
    ):
        encoded = grounder.encode(file)
        ids = read_segment_ids(probes[next(iter(captions.values()))[0]].image)
        for caption, numbers in captions.items():
            responses = encoded.responses(caption, [probes[number].span for number in numbers])
            for number, response in zip(numbers, responses, strict=True):
                mask = encoded.geometry.mask(response, grounder.threshold) & (ids != IGNORE_ID)
                truth = np.isin(ids, probes[number].segment_ids)
                ious[number] = iou(mask, truth) if truth.any() else 0.0
    return ious


def percentage(hits: Sequence[bool], images: Sequence[Path]) -> dict[str, Any]:
    """The percentage of hits, its 95 % interval over images, and the number of values."""
    if not hits:
        return {"percent": None, "interval": None, "count": 0}
    found = bootstrap([100.0 * hit for hit in hits], images)
    return {"percent": found.mean, "interval": [found.low, found.high], "count": len(hits)}


def cell(value: dict[str, Any]) -> str:
    """A percentage with its interval, for a table."""
    if value["percent"] is None:
        return "-"
    low, high = value["interval"]
    return f"{value['percent']:.1f} % ({low:.1f} to {high:.1f})"


def show(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(file: Path | None, content: Any) -> None:
    """Write the figures, if a file was given."""
    if file is not None:
        write_json(file, content, indent=1)
