"""From what a network says about the phrases of a caption to answers. NumPy only, for every runtime."""

from collections.abc import Sequence

from ppmn.config import MethodConfig
from ppmn.grounding.calibration import (
    MapEvidence,
    Values,
    expected_iou,
    map_features,
    presence_probability,
)
from ppmn.grounding.instances import DrawObjects, find_instances
from ppmn.grounding.maps import MapGeometry, postprocess
from ppmn.grounding.result import Instance, PhrasePrediction
from ppmn.phrases.rules import Phrase
from ppmn.phrases.word_lists import THING_MASSES
from ppmn.types import Map

NO_MASK = 1.0  # no probability exceeds this threshold


def predict_phrases(
    phrases: Sequence[Phrase],
    evidence: MapEvidence,
    geometry: MapGeometry,
    config: MethodConfig,
    *,
    threshold: float,
    foreign: bool = False,
    keep_absent: bool = False,
    draw_objects: DrawObjects | None = None,
) -> tuple[PhrasePrediction, ...]:
    """The answer for each phrase.

    Args:
        phrases: The phrases of a caption.
        evidence: What the network says about them.
        geometry: How maps lie on the image.
        config: The model's configuration, with its post-processing and calibration.
        threshold: The response above which a pixel is in a mask.
        foreign: The caption seems not to be English.
        keep_absent: Keep the masks of phrases that are probably not in the image, and of a foreign caption.
        draw_objects: Draws the objects at cells of a map; None: the network cannot.

    Returns:
        One prediction per phrase.
    """
    maps = postprocess_maps(evidence.responses, config)
    calibration = config.calibration
    presence: list[float | None] = [None] * len(phrases)
    features: dict[float, Values] = {}  # by the threshold that masks are cut at
    if evidence.presence is not None:  # by the model's own threshold, whatever masks are cut at
        features[config.threshold] = map_features(evidence, maps, config.threshold)
        presence = presence_probability(features[config.threshold], calibration).tolist()
    scores: list[float | None] = [None] * len(phrases)
    if calibration.score_weights:
        if threshold not in features:
            features[threshold] = map_features(evidence, maps, threshold)
        scores = expected_iou(features[threshold], calibration).tolist()
    found = []
    for phrase, response, present, score in zip(phrases, maps, presence, scores, strict=True):
        absent = present is not None and present < calibration.min_presence
        cut = NO_MASK if (absent or foreign) and not keep_absent else threshold
        objects = _instances(phrase, response, geometry, cut, draw_objects)
        said = present, absent, foreign
        found.append(PhrasePrediction(phrase, response, geometry, cut, *said, score, objects))
    return tuple(found)


def postprocess_maps(responses: Map, config: MethodConfig) -> Map:
    """Maps (P, H, W) post-processed as the model's configuration asks."""
    return postprocess(
        responses,
        threshold=config.threshold,
        relative_threshold=config.relative_threshold,
        hysteresis_peak=config.hysteresis_peak,
    )


def _instances(
    phrase: Phrase, response: Map, geometry: MapGeometry, threshold: float, draw: DrawObjects | None
) -> tuple[Instance, ...]:
    """The objects of a plural or a mass of things; others name one, its size computed on demand."""
    if not (phrase.plural or phrase.head in THING_MASSES):
        whole = Instance(response, geometry, threshold)
        return (whole,) if (response > threshold).any() else ()
    maps = find_instances(response, threshold, draw)
    found = (Instance(map, geometry, threshold) for map in maps)
    return tuple(instance for instance in found if instance.area)  # not those in the padding
