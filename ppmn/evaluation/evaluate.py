"""Measure a model, or the predictions of any other system, on narratives.

    ppmn evaluate --model compact --data ROOT:val2017 --json run.json --curves curves.png
    torchrun --nproc-per-node 2 -m ppmn.cli evaluate --model compact --data ROOT:val2017
    ppmn evaluate --predictions theirs.jsonl --data ROOT:val2017 --compare run.json

docs/benchmark.md says what is measured.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from ppmn.data.index import Narratives, open_narratives
from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import IGNORE_ID
from ppmn.data.source_spec import parse_spec
from ppmn.data.targets import Rows, targets_ppmn2022
from ppmn.errors import InputError
from ppmn.evaluation import metrics
from ppmn.evaluation.figures import SheetRow, curves, sheet
from ppmn.evaluation.metrics import AverageRecall, PhraseKey
from ppmn.evaluation.predictions import (
    Answers,
    Prediction,
    file_answers,
    measurable,
    read_predictions,
    write_predictions,
)
from ppmn.evaluation.report import compare, comparison_table, read_report, report, table, write_report
from ppmn.files import check_writable
from ppmn.grounding.grounder import load
from ppmn.images import read_image
from ppmn.model.preprocess import Preprocess
from ppmn.types import Map, Mask, Size, Span

AUTHORS_PREPROCESS = Preprocess(800, 1333)  # what protocol ppmn2022 is defined for


class Predictor(Protocol):
    """What a model offers to be measured."""

    @property
    def name(self) -> str: ...

    @property
    def threshold(self) -> float: ...

    @property
    def preprocess(self) -> Preprocess:
        """How the model resizes images."""
        ...

    def response_maps(self, image: Image.Image, caption: str, spans: Sequence[Span]) -> Iterable[Map]:
        """Probabilities of each span in the image's own size, made one at a time."""
        ...

    def quarter_maps(self, image: Image.Image, caption: str, spans: Sequence[Span]) -> Iterable[Map]:
        """Probabilities of each span at a quarter of the resized image padded to 32."""
        ...


@dataclass(frozen=True)
class Run:
    """What an evaluation found; predictions are kept only on request."""

    metric: AverageRecall
    predictions: dict[PhraseKey, Prediction]


def open_sources(specs: Sequence[str]) -> dict[str, Narratives]:
    """The narratives of every `ROOT[:SPLIT]`, by `folder:split`; without a split, of every split."""
    sources: dict[str, Narratives] = {}
    for text in specs:
        spec = parse_spec(text)
        if spec.weight != 1:
            raise InputError(f"--data {text}: every phrase is measured once, a weight means nothing here")
        for split in spec.splits:
            name = f"{spec.root.resolve().name}:{split}"
            if name in sources:
                raise InputError(f"--data {text}: there already is a source called {name}")
            sources[name] = open_narratives(spec.root, split)
    return sources


def model_answers(predictor: Predictor, protocol: metrics.Protocol = "full") -> Answers:
    """Ask a model; its maps are cut at its threshold (`ppmn2022`: at one half), one phrase at a time."""
    if protocol == "ppmn2022" and predictor.preprocess != AUTHORS_PREPROCESS:
        short, long = predictor.preprocess.short_side, predictor.preprocess.long_side
        raise InputError(
            f"protocol ppmn2022 is defined only for a model run at 800/1333, and {predictor.name} runs at "
            f"{short}/{long}: measure it with protocol full"
        )
    threshold = predictor.threshold if protocol == "full" else 0.5

    def answer(source: str, narrative: Narrative) -> Iterator[tuple[Mask, float]]:
        photo = read_image(narrative.image.file)
        spans = [(p.start, p.end) for p in measurable(source, narrative, protocol).values()]
        maps = predictor.response_maps if protocol == "full" else predictor.quarter_maps
        for chances in maps(photo, narrative.caption, spans):
            mask = chances > threshold
            yield mask, float(chances[mask].mean()) if mask.any() else 0.0

    return answer


def evaluate(
    answers: Answers,
    sources: Mapping[str, Sequence[Narrative]],
    protocol: metrics.Protocol = "full",
    keep: bool = False,
) -> Run:
    """Measure each phrase of known truth once; the processes of a running group share the narratives out."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    places = [(s, i) for s, narratives in sources.items() for i in range(len(narratives))]
    run = Run(AverageRecall(protocol), {})
    bar = tqdm(places[rank::world], "evaluate", unit="narrative", disable=rank > 0, file=sys.stderr)
    for source, place in bar:
        _measure(run, source, sources[source][place], answers, keep)
    run.metric.gather()
    if world > 1:
        parts: list[dict[PhraseKey, Prediction]] = [{}] * world
        dist.all_gather_object(parts, run.predictions)
        for part in parts:
            run.predictions.update(part)
    return run


def _measure(run: Run, source: str, narrative: Narrative, answers: Answers, keep: bool) -> None:
    ids = _ids(narrative)
    phrases = measurable(source, narrative, run.metric.protocol)
    truths = _truths(ids, [phrase.segment_ids for phrase in phrases.values()], run.metric.protocol)
    known = ids != IGNORE_ID  # a border is neither in nor out
    keyed = zip(phrases.items(), truths, strict=True)
    for ((key, phrase), truth), (mask, score) in zip(keyed, answers(source, narrative), strict=True):
        if mask is not None and mask.shape != truth.shape:
            have, need = (" x ".join(map(str, m.shape)) for m in (mask, truth))
            raise InputError(
                f"{narrative.image.file}: a mask of {have} pixels does not fit its annotation of {need}"
            )
        if mask is not None and keep:
            run.predictions[key] = Prediction.of(mask, score)
        counted = mask & known if mask is not None and run.metric.protocol == "full" else mask
        run.metric.update(key, counted, truth, thing=phrase.isthing, plural=phrase.plural)


def _ids(narrative: Narrative) -> NDArray[np.int32]:
    image, ids = narrative.image, narrative.image.ids()
    if ids.shape != (image.height, image.width):
        raise InputError(
            f"{image.segmentation} has {ids.shape[0]} x {ids.shape[1]} pixels, its annotation says "
            f"{image.height} x {image.width}"
        )
    return ids


def _truths(ids: NDArray[np.int32], rows: Rows, protocol: metrics.Protocol) -> Iterable[Mask]:
    if protocol == "ppmn2022":
        return targets_ppmn2022(ids, rows, *released_size(*ids.shape))
    return (np.isin(ids, row) for row in rows)  # one at a time: a photo may be large


def released_size(height: int, width: int) -> tuple[Size, Size]:
    """Size of a photo resized to 800/1333 as detectron2 rounds, and of that padded to multiples of 32."""
    resized = AUTHORS_PREPROCESS.size(height, width)
    return resized, (-(-resized[0] // 32) * 32, -(-resized[1] // 32) * 32)


def worst_sheet(run: Run, sources: Mapping[str, Sequence[Narrative]], count: int, file: Path) -> None:
    """Draw the phrases with the least IoU. The run must have kept predictions."""
    counted = {k: m for k, m in run.metric.measured.items() if not m.empty}
    worst = sorted(counted, key=lambda key: (counted[key].iou, key))[:count]
    wanted = {key[:3] for key in worst}
    found = {
        (source, n.image.id, n.index): n
        for source, rows in sources.items()
        for n in rows
        if (source, n.image.id, n.index) in wanted
    }
    sheet([_worst_row(run, key, found[key[:3]], counted[key].iou) for key in worst], file)


def _worst_row(run: Run, key: PhraseKey, narrative: Narrative, iou: float) -> SheetRow:
    phrase, image, ids = narrative.phrases[key.phrase], narrative.image, _ids(narrative)
    prediction = run.predictions.get(key)
    mask = np.zeros_like(ids, bool) if prediction is None else prediction.mask()
    if run.metric.protocol == "ppmn2022" and prediction is not None:
        (height, width), _ = released_size(image.height, image.width)
        mask = mask[: -(-height // 4), : -(-width // 4)]  # the photo without its padding
    return SheetRow(
        read_image(image.file),
        narrative.caption,
        [(phrase.start, phrase.end)],
        [np.isin(ids, phrase.segment_ids)],
        [mask],
        f"[{key.source} image {image.id}: {narrative.caption[phrase.start : phrase.end]!r}, "
        f"IoU {iou:.3f}{'' if prediction else ', no prediction'}]",
    )


def run(args: argparse.Namespace) -> None:
    """`ppmn evaluate`: what can be refused is refused before the work begins."""
    others = [(file.stem, read_report(file)) for file in args.with_runs]
    compared = read_report(args.compare) if args.compare else None
    outputs = (args.json, args.save_predictions, args.curves, args.worst and args.sheet)
    check_writable([file for file in outputs if file])
    if others and args.curves and not (args.model or args.predictions):
        return curves(others, args.curves)
    _refuse(args, [r["protocol"] for _, r in others] + ([compared["protocol"]] if compared else []))
    with process_group() as speaks:
        sources = open_sources(args.data)
        answers, model, threshold = _answers(args, sources)
        found = evaluate(answers, sources, args.protocol, keep=bool(args.worst or args.save_predictions))
        if not speaks:
            return None
        data = [{"source": s, "fingerprint": n.fingerprint, "narratives": len(n)} for s, n in sources.items()]
        content = report(found.metric, model, threshold, data)
        if args.json:
            write_report(content, args.json)
        if args.save_predictions:
            write_predictions(found.predictions, args.save_predictions)
        print(table(content))
        if compared:
            print(comparison_table(*compare(content, compared), str(args.compare)))
        if args.curves:
            curves([(model, content), *others], args.curves)
        if args.worst:
            worst_sheet(found, sources, args.worst, args.sheet)


def _refuse(args: argparse.Namespace, protocols: Sequence[str]) -> None:
    if not (args.model or args.predictions):
        raise InputError("nothing to measure: give --model or --predictions, or --curves and --with")
    if not args.data:
        raise InputError("nothing to measure on: give --data ROOT[:SPLIT]")
    if args.worst < 0:
        raise InputError(f"--worst is {args.worst}, it must be 0 or more")
    if args.with_runs and not args.curves:
        raise InputError("--with adds runs to a picture: give its file with --curves")
    if set(protocols) - {args.protocol}:
        raise InputError(f"runs are set beside each other by one protocol only, this one is {args.protocol}")
    if args.protocol == "ppmn2022" and (args.predictions or args.save_predictions):
        raise InputError("files of predictions are in the photo's pixels, they go with protocol full only")


def _answers(
    args: argparse.Namespace, sources: Mapping[str, Narratives]
) -> tuple[Answers, str, float | None]:
    """Who answers, by what name and at which threshold."""
    if args.predictions:
        predictions, others = read_predictions(args.predictions, sources)
        if others:
            said = f"{others:,} lines of {args.predictions} are of phrases with no ground truth"
            print(said, file=sys.stderr)
        return file_answers(predictions), args.predictions.name, None
    predictor: Predictor = load(args.model)
    threshold = predictor.threshold if args.protocol == "full" else 0.5
    return model_answers(predictor, args.protocol), predictor.name, threshold


@contextmanager
def process_group() -> Iterator[bool]:
    """Join the processes that torchrun started, if it did; says whether this is the one that speaks."""
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield not dist.is_initialized() or dist.get_rank() == 0
    finally:
        if started:
            dist.destroy_process_group()
