"""What Table 1 chooses on images held out from training, and the crossed proposals of stage two."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from ppmn.baselines.two_stage_method import TwoStageSmall, fold_of
from ppmn.config import TrainConfig
from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import IGNORE_ID, DataSpec
from ppmn.data.partition import held_out
from ppmn.evaluation.evaluate import evaluate
from ppmn.evaluation.metrics import AverageRecall
from ppmn.evaluation.predictions import Answers, measurable
from ppmn.evaluation.region_rows import oracle_answers, own_answers
from ppmn.evaluation.selection import read_segment_ids
from ppmn.grounding.encoded_image import EncodedImage
from ppmn.grounding.grounder import Grounder, load
from ppmn.images import ImageInput, read_image
from ppmn.model.folder import CONFIG_FILE
from ppmn.model.method import autocast
from ppmn.training.dataset import TrainingSet, epoch_batches
from ppmn.training.encoder_inputs import open_caches
from ppmn.training.feature_cache import FeatureCaches, content_key
from ppmn.training.initial import initial_model
from ppmn.training.sources import open_training_sources

_log = logging.getLogger("ppmn.table1")
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
MIN_SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
OBJECT_SCORES = (0.0, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)  # never under one half but 0
PLURAL_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5)
ANCHOR_IMAGES = 60  # of each source, about, whose boxes give MCN's anchors
HeldOut = Mapping[str, Sequence[Narrative]]


def changed(config: Any, **fields: Any) -> Any:
    """A configuration of any method with some of its fields changed."""
    return replace(config, **fields)


def set_fields(grounder: Grounder, **fields: Any) -> None:
    """Change fields of a loaded model's configuration."""
    grounder.model.config = changed(grounder.model.config, **fields)
    runtime: Any = grounder.runtime
    runtime.config = grounder.model.config


def choose_settings(grounder: Grounder, folder: Path, validation: HeldOut) -> dict[str, Any]:
    """Set the threshold of a trained model, or what its stage needs, to the best of a few values.

    Args:
        grounder: The model.
        folder: Its folder, whose configuration is changed.
        validation: Held-out narratives.

    Returns:
        The Average Recall of every value, by name of the setting; nothing for a model without any.
    """
    model = grounder.model
    if not isinstance(model, TwoStageSmall):
        name, scores = "threshold", by_threshold(grounder, validation)
    elif model.config.true_segments:
        return {}  # its answers are segments
    else:
        name = "min_score" if model.config.stage == "one" else "plural_threshold"
        if name == "min_score":
            scores = by_min_score(grounder, validation, MIN_SCORES)
        else:
            scores = by_plural_threshold(grounder, validation, own_answers)
    best = best_of(scores)
    found = ", ".join(f"{value:g}: {score:.1f}" for value, score in scores.items())
    _log.info(f"{folder.name}: {name} {best:g} of {found}")
    saved = type(model.config).load(folder / CONFIG_FILE)
    changed(saved, **{name: best}).save(folder / CONFIG_FILE)
    return {name: {f"{value:g}": score for value, score in scores.items()}}


def best_of(scores: Mapping[float, float]) -> float:
    """The value with the highest score, of equal ones the first."""
    return max(scores, key=lambda value: scores[value])


def by_min_score(grounder: Grounder, validation: HeldOut, values: Sequence[float]) -> dict[float, float]:
    """The limit that proposals set, by the score that they need."""
    scores = {}
    for value in values:
        set_fields(grounder, min_score=value)
        scores[value] = _overall(oracle_answers(grounder), validation)
    return scores


def by_plural_threshold(
    grounder: Grounder, validation: HeldOut, answers_of: Callable[[Grounder], Answers]
) -> dict[float, float]:
    """Average Recall of a second stage by the probability above which a region joins the others."""
    scores, encode = {}, grounder.encode
    grounder.encode = _remembered(encode)  # type: ignore[method-assign, assignment]
    for value in PLURAL_THRESHOLDS:
        set_fields(grounder, plural_threshold=value)
        scores[value] = _overall(answers_of(grounder), validation)
    grounder.encode = encode  # type: ignore[method-assign]
    return scores


def _overall(answers: Answers, validation: HeldOut) -> float:
    return evaluate(answers, validation).metric.compute().average_recall["overall"] or 0.0


def _remembered(encode: Callable[[ImageInput], EncodedImage]) -> Callable[[ImageInput], EncodedImage]:
    """The same, which finds the regions of an image once."""
    found: dict[str, EncodedImage] = {}

    def remembered(image: ImageInput) -> EncodedImage:
        pixels = np.asarray(image)
        key = content_key(repr(pixels.shape).encode() + pixels.tobytes())
        if key not in found:
            found[key] = encode(image)
        return found[key]

    return remembered


def by_threshold(grounder: Grounder, validation: HeldOut) -> dict[float, float]:
    """Average Recall by threshold, from one pass over the images; of MCN that of things."""
    metrics = {value: AverageRecall() for value in THRESHOLDS}
    for source, narratives in validation.items():
        for narrative in narratives:
            phrases, ids = measurable(source, narrative, "full"), read_segment_ids(narrative.image)
            spans = [(p.start, p.end) for p in phrases.values()]
            maps = grounder.response_maps(read_image(narrative.image.file), narrative.caption, spans)
            for (key, phrase), response in zip(phrases.items(), maps, strict=True):
                truth = torch.isin(torch.from_numpy(ids), torch.tensor(phrase.segment_ids)).numpy()
                for value, metric in metrics.items():
                    mask = (response > value) & (ids != IGNORE_ID)
                    metric.update(key, mask, truth, thing=phrase.isthing, plural=phrase.plural)
    split = "things" if grounder.model.config.method == "mcn-small" else "overall"
    return {value: metric.compute().average_recall[split] or 0.0 for value, metric in metrics.items()}


def anchor_shapes(specs: Sequence[DataSpec], config: TrainConfig) -> str:
    """MCN's three anchors, by k-means of the boxes of thing phrases, as the value of `model.anchors`."""
    sides = []
    for source in open_training_sources(specs):
        held = [held_out(source.annotation(i), config.validation_fraction) for i in range(len(source))]
        trained = [i for i, out in enumerate(held) if not out]
        for index in trained[:: max(1, len(trained) // ANCHOR_IMAGES)]:
            narrative = source.narrative(index, config.seed)
            image = narrative.image
            boxes = {s.id: s.bbox for s in image.segments}
            for phrase in narrative.grounded:
                if phrase.isthing:
                    x, y, w, h = np.array([boxes[id] for id in phrase.segment_ids]).T
                    size = ((x + w).max() - x.min(), (y + h).max() - y.min())
                    sides.append((size[0] / image.width, size[1] / image.height))
    centres, _ = kmeans2(np.array(sides), 3, minit="++", seed=config.seed)
    ordered = centres[np.argsort(centres.prod(1))].clip(0.01, 1)
    return str([round(float(side), 3) for side in ordered.ravel()])


@torch.no_grad()
def cross_proposals(
    config: TrainConfig,
    specs: Sequence[DataSpec],
    one: Path,
    halves: Sequence[Path],
    *,
    cache: Path,
    features: Path,
) -> None:
    """Fill the cache of stage two with regions that were found by networks which had not seen the image.

    Only images that the run will draw are taken.

    Args:
        config: Of stage two, with `crossed`, so that no other run takes this cache for its own.
        specs: The training data.
        one: Stage one of all images, whose regions are used at test.
        halves: Stage one trained on the first and on the second half of the images.
        cache: The folder of the cache.
        features: The cache that stage one was trained on: what it holds is not encoded again.
    """
    model = initial_model(config, one)
    sources = open_training_sources(specs)
    regions = open_caches(config, cache, model, sources).image
    first = load(one).model.requires_grad_(False)
    tokens = open_caches(replace(config, model=first.config), features, first, sources).image
    assert regions is not None and tokens is not None
    networks = {fold: load(folder).model for fold, folder in zip(("first", "second"), halves, strict=True)}
    for network in networks.values():
        network.config = changed(network.config, stage="two")
    for file in drawn_images(TrainingSet(sources, config, model, FeatureCaches())):
        key = content_key(file.read_bytes())
        if regions.read(key) is None:
            network = networks["second" if fold_of(file.stem) == "first" else "first"]
            image, kept = network.preprocess(read_image(file)), tokens.read(key)
            with autocast(image.device, config.precision):
                own = [{name: value.float() for name, value in kept.items()}] if kept else None
                (found,) = network.feature_encoder.features([image], own)
            regions.write(key, found)


def drawn_images(data: TrainingSet) -> list[Path]:
    """The files of the images that a run draws in all of its epochs."""
    batches = (
        batch
        for epoch in range(data.config.epochs)
        for batch in epoch_batches(data, epoch, data.config.batch_size)
    )
    drawn = sorted({number % len(data) for batch in batches for number in batch})
    references = (data.references[number] for number in drawn)
    return [data.sources[source].annotation(index).file for source, index in references]
