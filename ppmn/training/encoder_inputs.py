"""What a training step gives to the network: images and captions, or their features from a cache."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ppmn.config import Augment, Precision, TrainConfig
from ppmn.distributed import sum_over_processes
from ppmn.errors import InputError
from ppmn.model.method import BatchTargets, Method, TrainingBatch, autocast
from ppmn.model.pyramid import Features
from ppmn.training.dataset import Item, batch_targets
from ppmn.training.feature_cache import FeatureCache, FeatureCaches, encoder_fingerprint
from ppmn.training.sources import Source

WORD_PIECES = 80  # of a narrative, about


@dataclass(frozen=True)
class StepTargets:
    """The targets of a part of a step, and the counts of the whole step that means are taken over."""

    targets: BatchTargets
    rows: float
    pixels: float
    size: float  # images


def step_targets(batches: Sequence[Sequence[Item]], config: TrainConfig) -> list[StepTargets]:
    """The targets of the parts of a step; unless `per_process`, counts are of all processes."""
    targets = [batch_targets(batch, config) for batch in batches]
    rows, pixels = float(sum(len(t.Y) for t in targets)), sum(t.pixels for t in targets)
    counts = [rows, pixels, float(sum(map(len, batches)))]
    if not config.per_process:
        counts = sum_over_processes(*counts)
    return [StepTargets(target, *counts) for target in targets]


def training_batch(
    model: Method, caches: FeatureCaches, items: Sequence[Item], step: StepTargets, precision: Precision
) -> TrainingBatch:
    """What a method computes its loss from."""
    parameter = next(p for p in model.parameters() if p.requires_grad)
    device, dtype = parameter.device, parameter.dtype
    return TrainingBatch(
        image_inputs(items, model, caches.image, device, precision),
        [caption for item in items for caption in item.captions],
        [len(item.captions) for item in items],
        cached_words(items, model, caches.text, device),
        step.targets.to(device, dtype),
        [item.segments.to(device) for item in items if item.segments],
        step.pixels,
        step.rows,
        step.size,
        precision,
    )


def open_caches(
    config: TrainConfig, folder: Path | None, model: Method, sources: Sequence[Source]
) -> FeatureCaches:
    """Caches of the frozen encoders; refused where cached features would differ from fresh ones."""
    if folder is None:
        return FeatureCaches()
    part, description = model.feature_encoder.frozen_part()
    frozen = not any(p.requires_grad for p in part.parameters())
    if not frozen and config.lr_text > 0:
        raise InputError("both encoders are trained: there is nothing to cache")
    image = text = None
    if frozen:
        _check_images_repeat(config, model, sources)
        precision = "" if config.precision == "float32" else f" {config.precision}"
        fingerprint = encoder_fingerprint(part, f"{model.preprocess} {description}{precision}")
        image = FeatureCache(folder / "image", fingerprint)
        image.require(2 * _feature_count(config, model, sources))
    if config.lr_text == 0:
        if config.text_dropout:
            raise InputError("the frozen text encoder uses dropout: a cache needs text_dropout=false")
        text = FeatureCache(
            folder / "text", encoder_fingerprint(model.text_encoder, config.model.text.source)
        )
        annotated = sum(len(s) for s in sources if s.narratives is not None)
        text.require(2 * annotated * WORD_PIECES * model.text_encoder.channels)
    return FeatureCaches(image, text)


def _check_images_repeat(config: TrainConfig, model: Method, sources: Sequence[Source]) -> None:
    if replace(config.augment, mirror=False) != Augment() and not config.augment.fixed:
        raise InputError(f"images change every epoch ({config.augment}): they cannot be cached")
    if config.small_epochs:
        raise InputError(f"images grow after {config.small_epochs} epochs: they cannot be cached")
    if config.model.count_padding:
        raise InputError("padding counts, so features depend on the batch: they cannot be cached")
    if config.augment.mirror:
        images = (source.annotation(index) for source in sources for index in range(len(source)))
        sizes = {model.preprocess.size(image.height, image.width) for image in images}
        padded = [size for size in sizes if model.image_encoder.padded_size(*size) != size]
        if padded:
            height, width = padded[0]
            raise InputError(
                f"augment.mirror mirrors cached features, which are padded for images of {width}x{height} "
                "pixels: train without a cache"
            )


def _feature_count(config: TrainConfig, model: Method, sources: Sequence[Source]) -> int:
    """How many numbers the image cache will hold."""
    counts: dict[Path, int] = {}
    for source in sources:
        copied = config.augment.fixed and source.narratives is None
        copies = math.ceil(source.weight) if copied else 1
        for index in range(len(source)):
            image = source.annotation(index)
            size = model.preprocess.size(image.height, image.width)
            counts[image.file] = copies * model.feature_encoder.feature_count(*size)
    return sum(counts.values())


def image_inputs(
    items: Sequence[Item],
    model: Method,
    cache: FeatureCache | None,
    device: torch.device,
    precision: Precision = "float32",
) -> Sequence[Tensor] | Sequence[Features]:
    """The images, or with a cache their features; those that it does not have are computed and written."""
    if cache is None:
        return [item.image.to(device) for item in items if item.image is not None]
    inputs = []
    for item in items:
        features = item.cached.features
        if features is None and item.image is not None:
            with torch.no_grad(), autocast(device, precision):
                (computed,) = model.feature_encoder.features([item.image.to(device)])
            features = cache.write(item.cached.image_key, computed)
        own = {name: value.to(device).float() for name, value in (features or {}).items()}
        inputs.append({name: _mirrored(value) for name, value in own.items()} if item.mirrored else own)
    return inputs


def _mirrored(features: Tensor) -> Tensor:
    """Maps (..., C, H, W) mirrored; vectors have no place."""
    return features.flip(-1) if features.ndim > 2 else features


def cached_words(
    items: Sequence[Item], model: Method, cache: FeatureCache | None, device: torch.device
) -> list[Tensor] | None:
    """The outputs of the text encoder for all captions, written where missing; None: they are not cached."""
    if cache is None or not all(item.cached.caption_key for item in items):
        return None
    words = []
    for item in items:
        cached = item.cached.words
        if cached is None:
            with torch.no_grad():
                (computed,) = model.text_encoder.encode([item.captions[0].ids])
            cached = cache.write(item.cached.caption_key, {"words": computed})
        words.append(cached["words"].to(device).float())
    return words
