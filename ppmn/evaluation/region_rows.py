"""Rows of Table 1 that need the annotation: oracles of proposals, true plurals, true segments as proposals.

Each function here gives `Answers` for `evaluate`, as `model_answers` does for a model by itself.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ppmn.baselines.region_encoder import RegionEncoder
from ppmn.baselines.region_vectors import Regions
from ppmn.baselines.two_stage_method import TwoStageSmall, with_plurals
from ppmn.data.narratives import Narrative
from ppmn.data.targets import targets_area
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import Predictor, model_answers
from ppmn.evaluation.predictions import Answers, measurable
from ppmn.evaluation.selection import read_segment_ids
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.torch_runtime import TorchRuntime
from ppmn.images import read_image
from ppmn.types import Mask

Oracle = Literal["best", "union", "overlapping"]
Answer = tuple[Mask, float]


def own_answers(grounder: Grounder) -> Answers:
    """What a model answers; of one that only proposes, the best region of each annotated segment."""
    runtime = grounder.runtime
    model = runtime.model if isinstance(runtime, TorchRuntime) else None  # ONNX Runtime runs PPMN only
    if isinstance(model, TwoStageSmall) and model.config.stage == "one":
        return oracle_answers(grounder)
    return model_answers(grounder)


def oracle_answers(grounder: Grounder, kind: Oracle = "best") -> Answers:
    """The limit that proposals set.

    Args:
        grounder: A two-stage system; only its first stage is used.
        kind: "best" takes the best region of each annotated segment, as the published oracle; "union" any
            regions that cover a phrase best together; "overlapping" the best mask before the partition.
    """
    model = two_stage_of(grounder)

    def answer(source: str, narrative: Narrative) -> Iterator[Answer]:
        image, ids = read_image(narrative.image.file), read_segment_ids(narrative.image)
        if kind == "overlapping":
            regions = full_size(_proposed(model, grounder, image), grounder.encode(image).geometry)
        else:
            regions = image_regions(grounder, image)
        for phrase in measurable(source, narrative, "full").values():
            wanted = [ids == segment for segment in phrase.segment_ids]
            chosen = best_union(wanted, regions) if kind == "union" else best_of_each(wanted, regions)
            yield union_of(regions, chosen, ids.shape), 1.0

    return answer


def truth_flag_answers(grounder: Grounder) -> Answers:
    """A two-stage system that the annotation tells which phrases mean several, as in the released code."""
    model = two_stage_of(grounder)

    @torch.inference_mode()
    def answer(source: str, narrative: Narrative) -> Iterator[Answer]:
        encoded = grounder.encode(read_image(narrative.image.file))
        phrases = list(measurable(source, narrative, "full").values())
        tokens = model.tokenize(narrative.caption, [(p.start, p.end) for p in phrases])
        maps, _ = model.ground(encoded.features, [with_plurals(tokens, [p.plural for p in phrases])])
        for response in maps.H[-1].sigmoid().cpu().numpy():
            full = encoded.geometry.response(response)
            yield _cut(full, grounder.threshold)

    return answer


def true_segment_answers(grounder: Grounder, *, truth_flag: bool = False) -> Answers:
    """Row D: stage two chooses among the annotated segments of an image."""
    model = two_stage_of(grounder)

    @torch.inference_mode()
    def answer(source: str, narrative: Narrative) -> Iterator[Answer]:
        phrases, ids = list(measurable(source, narrative, "full").values()), read_segment_ids(narrative.image)
        resized = model.preprocess(read_image(narrative.image.file))
        pyramid = model.image_encoder([resized.to(grounder.device)]).float()
        F = model.head.neck(pyramid)
        segments = [s.id for s in narrative.image.segments]
        masks, _ = targets_area(ids, [(s,) for s in segments], (F.shape[2], F.shape[3]))
        kept = [n for n in range(len(segments)) if masks[n].any()]
        regions = RegionEncoder(model).of_segments(pyramid, F, [torch.from_numpy(masks[kept]).to(F.device)])
        tokens = model.tokenize(narrative.caption, [(p.start, p.end) for p in phrases])
        if truth_flag:
            tokens = with_plurals(tokens, [p.plural for p in phrases])
        (scores,) = model.match(regions, [tokens], per_image=[1])
        for rows in model.chosen(tokens, scores):
            yield np.isin(ids, [segments[kept[row]] for row in rows]), 1.0

    return answer


def snapped_answers(predictor: Predictor, regions_of: Grounder | None = None) -> Answers:
    """Rows E and F: the responses of a model averaged inside each annotated segment, or inside each region.

    Args:
        predictor: A model that gives responses.
        regions_of: A two-stage system whose regions are used; None takes the annotated segments.
    """

    def answer(source: str, narrative: Narrative) -> Iterator[Answer]:
        image, ids = read_image(narrative.image.file), read_segment_ids(narrative.image)
        parts = [ids == segment.id for segment in narrative.image.segments]
        if regions_of is not None:
            parts = image_regions(regions_of, image)
        spans = [(p.start, p.end) for p in measurable(source, narrative, "full").values()]
        for response in predictor.response_maps(image, narrative.caption, spans):
            means = [float(response[part].mean()) if part.any() else 0.0 for part in parts]
            rows = [row for row, value in enumerate(means) if value > predictor.threshold]
            yield union_of(parts, rows, ids.shape), 1.0

    return answer


def two_stage_of(grounder: Grounder) -> TwoStageSmall:
    """The two-stage system of a grounder."""
    model = getattr(grounder.runtime, "model", None)
    if not isinstance(model, TwoStageSmall):
        raise InputError(f"{grounder.name} is no two-stage system: it has no regions")
    return model


@torch.inference_mode()
def _proposed(model: TwoStageSmall, grounder: Grounder, image: Image.Image) -> torch.Tensor:
    """What stage one proposes with a sufficient score, before the partition: probabilities (N, h, w)."""
    resized = model.preprocess(image)
    pyramid = model.image_encoder([resized.to(grounder.device)]).float()
    (proposed,) = model.head.propose(pyramid, model.head.neck(pyramid))
    return proposed.probabilities[proposed.scores >= model.config.min_score]


def image_regions(grounder: Grounder, image: Image.Image) -> list[Mask]:
    """The regions of an image in its own size."""
    encoded = grounder.encode(image)
    regions: Regions = encoded.features
    return full_size(regions.images[0].masks, encoded.geometry)


def full_size(masks: torch.Tensor, geometry: MapGeometry) -> list[Mask]:
    """Regions (R, h, w) as masks in the image's own size."""
    height, width = geometry.map_size
    found = []
    for mask in masks.float().cpu().numpy():
        padded = np.zeros((height, width), np.float32)
        padded[: mask.shape[0], : mask.shape[1]] = mask
        found.append(geometry.response(padded) > 0.5)
    return found


def best_of_each(wanted: Sequence[Mask], regions: Sequence[Mask]) -> list[int]:
    """The region with the highest IoU for each wanted mask; none where nothing overlaps."""
    chosen = []
    for mask in wanted:
        both = np.array([np.count_nonzero(mask & region) for region in regions])
        if both.any():
            areas = np.array([np.count_nonzero(region) for region in regions])
            chosen.append(int(np.argmax(both / (areas + np.count_nonzero(mask) - both))))
    return sorted(set(chosen))


def best_union(wanted: Sequence[Mask], regions: Sequence[Mask]) -> list[int]:
    """The regions, which do not overlap, whose union has the highest IoU with the union of the masks.

    It is always made of those that lie inside by the largest fractions.
    """
    mask: Mask = np.any(wanted, axis=0)
    both: NDArray[np.int64] = np.array([np.count_nonzero(mask & region) for region in regions], np.int64)
    areas = np.array([np.count_nonzero(region) for region in regions], np.int64)
    order = np.argsort(-both / np.maximum(areas, 1), kind="stable")
    inside, outside = np.cumsum(both[order]), np.cumsum((areas - both)[order])
    ious = inside / np.maximum(np.count_nonzero(mask) + outside, 1)
    if not len(ious) or ious.max() <= 0:
        return []
    return order[: int(ious.argmax()) + 1].tolist()


def union_of(regions: Sequence[Mask], rows: Sequence[int], shape: tuple[int, ...]) -> Mask:
    """The union of some regions."""
    union = np.zeros(shape, bool)
    for row in rows:
        union |= regions[row]
    return union


def _cut(response: NDArray[np.float32], threshold: float) -> Answer:
    mask = response > threshold
    return mask, float(response[mask].mean()) if mask.any() else 0.0
