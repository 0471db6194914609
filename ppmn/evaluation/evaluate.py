"""Measure a model, or the predictions of any other system, by the protocols of docs/benchmark.md."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image
from tqdm import tqdm

from ppmn.data.narratives import AnnotatedPhrase, Narrative
from ppmn.data.panoptic import IGNORE_ID, DataSpec, PanopticImage, named_splits
from ppmn.data.partition import SplitPart
from ppmn.data.targets import Rows, targets_ppmn2022
from ppmn.distributed import gather_objects, is_main_process, process_count, process_rank
from ppmn.errors import InputError
from ppmn.evaluation import metrics
from ppmn.evaluation.figures import SheetRow, sheet
from ppmn.evaluation.metrics import AverageRecall, InstanceSplit, PhraseKey
from ppmn.evaluation.predictions import Answers, Prediction, measurable
from ppmn.evaluation.selection import NarrativeSource, read_segment_ids, select_narratives
from ppmn.images import read_image
from ppmn.model.preprocess import Preprocess
from ppmn.types import Map, Mask, SegmentIds, Size, Span

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
        """Probabilities of each span in the image's own size, one at a time."""
        ...

    def quarter_maps(self, image: Image.Image, caption: str, spans: Sequence[Span]) -> Iterable[Map]:
        """Probabilities of each span at a quarter of the resized image padded to 32."""
        ...


@dataclass(frozen=True)
class EvaluationRun:
    """What an evaluation found; predictions are kept only on request."""

    metric: AverageRecall
    predictions: dict[PhraseKey, Prediction]


def open_narratives_of(specs: Sequence[DataSpec], part: SplitPart = "all") -> dict[str, NarrativeSource]:
    """The narratives of every split that is meant, by `folder:split`; see `select_narratives`."""
    sources: dict[str, NarrativeSource] = {}
    for name, spec, split in named_splits(specs):
        if spec.weight != 1:
            raise InputError(
                f"{spec.root} has weight {spec.weight:g}; an evaluation counts every phrase once"
            )
        sources[name] = select_narratives(spec.root, split, part, incomplete=spec.incomplete)
    if part != "all" and not any(sources.values()):
        raise InputError(f"no image of {', '.join(sources)} is in the part {part}")
    return sources


def mask_threshold(predictor: Predictor, protocol: metrics.Protocol) -> float:
    """The response above which a pixel is in a mask: the model's own, one half in `ppmn2022`."""
    return predictor.threshold if protocol == "full" else 0.5


def model_answers(predictor: Predictor, protocol: metrics.Protocol = "full") -> Answers:
    """The masks and scores that a model gives, one phrase at a time."""
    if protocol == "png256":
        raise InputError(
            f"protocol png256 is defined only for the two-stage baseline, and {predictor.name} gives no "
            "regions: measure it with protocol full"
        )
    if protocol == "ppmn2022" and predictor.preprocess != AUTHORS_PREPROCESS:
        sides = f"{predictor.preprocess.short_side}/{predictor.preprocess.long_side}"
        raise InputError(
            f"protocol ppmn2022 is defined only for a model run at 800/1333, and {predictor.name} runs at "
            f"{sides}: measure it with protocol full"
        )
    threshold = mask_threshold(predictor, protocol)
    maps = predictor.response_maps if protocol == "full" else predictor.quarter_maps

    def answer(source: str, narrative: Narrative) -> Iterator[tuple[Mask, float]]:
        image = read_image(narrative.image.file)
        spans = [(p.start, p.end) for p in measurable(source, narrative, protocol).values()]
        for response in maps(image, narrative.caption, spans):
            mask = response > threshold
            yield mask, float(response[mask].mean()) if mask.any() else 0.0

    return answer


def evaluate(
    answers: Answers,
    sources: Mapping[str, Sequence[Narrative]],
    *,
    protocol: metrics.Protocol = "full",
    keep_predictions: bool = False,
) -> EvaluationRun:
    """Measure each annotated phrase once; the processes of a running group share the narratives."""
    places = [(source, i) for source, narratives in sources.items() for i in range(len(narratives))]
    mine = places[process_rank() :: process_count()]
    run = EvaluationRun(AverageRecall(protocol), {})
    hidden = None if is_main_process() else True  # None: shown on a terminal only
    for source, i in tqdm(mine, "evaluate", unit="narrative", disable=hidden, file=sys.stderr):
        _measure(run, source, sources[source][i], answers, keep_predictions)
    run.metric.gather()
    for part in gather_objects(dict(run.predictions)):
        run.predictions.update(part)
    return run


def _measure(run: EvaluationRun, source: str, narrative: Narrative, answers: Answers, keep: bool) -> None:
    protocol = run.metric.protocol
    ids = read_segment_ids(narrative.image)
    phrases = measurable(source, narrative, protocol)
    truths = _truths(ids, [phrase.segment_ids for phrase in phrases.values()], protocol)
    valid = ids != IGNORE_ID
    keyed = zip(phrases.items(), truths, strict=True)
    for ((key, phrase), truth), (mask, score) in zip(keyed, answers(source, narrative), strict=True):
        if mask is not None and mask.shape != truth.shape:
            have, need = (" x ".join(map(str, m.shape)) for m in (mask, truth))
            raise InputError(
                f"{narrative.image.file}: a mask of {have} pixels does not fit its annotation of {need}"
            )
        if mask is not None and keep:
            run.predictions[key] = Prediction.of(mask, score)
        counted = mask & valid if mask is not None and protocol == "full" else mask
        instances = instance_split(phrase, narrative.image)
        run.metric.update(
            key, counted, truth, thing=phrase.isthing, plural=phrase.plural, instances=instances
        )


def instance_split(phrase: AnnotatedPhrase, image: PanopticImage) -> InstanceSplit | None:
    """Whether a thing phrase must be told from others of its kind: by the categories of the image's segments.

    Crowds count as others too. Stuff, absent phrases and plurals that mean all of their kind are in no split.
    """
    if not (phrase.isthing and phrase.segment_ids):
        return None
    kinds = {s.category_id for s in image.segments if s.id in phrase.segment_ids}
    others = any(s.category_id in kinds and s.id not in phrase.segment_ids for s in image.segments)
    if phrase.plural:
        return "plurals_some" if others else None
    return "things_among" if others else "things_alone"


def _truths(ids: SegmentIds, rows: Rows, protocol: metrics.Protocol) -> Iterable[Mask]:
    if protocol == "ppmn2022":
        return targets_ppmn2022(ids, rows, *ppmn2022_sizes(*ids.shape))
    return (np.isin(ids, row) for row in rows)  # one at a time: an image may be large


def ppmn2022_sizes(height: int, width: int) -> tuple[Size, Size]:
    """The size of an image resized to 800/1333, and of that padded to multiples of 32."""
    resized = AUTHORS_PREPROCESS.size(height, width)
    return resized, (-(-resized[0] // 32) * 32, -(-resized[1] // 32) * 32)


def worst_sheet(
    run: EvaluationRun, sources: Mapping[str, Sequence[Narrative]], file: Path, *, count: int
) -> None:
    """Draw the `count` phrases with the lowest IoU; the run must have kept predictions."""
    counted = {key: score for key, score in run.metric.phrase_scores.items() if not score.empty}
    worst = sorted(counted, key=lambda key: (counted[key].iou, key))[:count]
    wanted = {key[:3] for key in worst}
    found = {
        (source, n.image.id, n.index): n
        for source, narratives in sources.items()
        for n in narratives
        if (source, n.image.id, n.index) in wanted
    }
    sheet([_worst_row(run, key, found[key[:3]], counted[key].iou) for key in worst], file)


def _worst_row(run: EvaluationRun, key: PhraseKey, narrative: Narrative, iou: float) -> SheetRow:
    phrase, image = narrative.phrases[key.phrase], narrative.image
    ids = read_segment_ids(image)
    prediction = run.predictions.get(key)
    mask = np.zeros_like(ids, bool) if prediction is None else prediction.mask()
    if run.metric.protocol == "ppmn2022" and prediction is not None:
        (height, width), _ = ppmn2022_sizes(image.height, image.width)
        mask = mask[: -(-height // 4), : -(-width // 4)]  # without the padding
    text = narrative.caption[phrase.start : phrase.end]
    missing = "" if prediction else ", no prediction"
    return SheetRow(
        read_image(image.file),
        narrative.caption,
        [(phrase.start, phrase.end)],
        [np.isin(ids, phrase.segment_ids)],
        [mask],
        f"[{key.source} image {image.id}: {text!r}, IoU {iou:.3f}{missing}]",
    )
