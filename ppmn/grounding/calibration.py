"""What a network's numbers mean: the probability that a phrase is in the image, and the IoU of its mask.

NumPy only, on plain arrays, so that every runtime can use it. The numbers are those of the model's
configuration; experiments/calibrate.py fits them on held-out images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppmn.config import CalibrationConfig
from ppmn.errors import InputError
from ppmn.grounding.components import count_components
from ppmn.types import Map

MAP_FEATURES = (
    "peak",
    "inside",
    "area",
    "sharpness",
    "agreement",
    "parts",
    "presence",
    "certainty",
    "somewhere",
)
_TINY = 1e-4
Values = NDArray[np.float64]


@dataclass(frozen=True)
class MapEvidence:
    """What a network says about the P phrases of a caption.

    Attributes:
        responses: Probabilities of the last map, before post-processing, (P, H, W).
        before: Those of the map before it; the same where the network has one map only.
        presence: Logits that what the phrases name is in the image, (P,); None: the network does not say.
        certainty: How much of what each phrase points at lies in its drawn mask, (P,); None as `presence`.
        somewhere: Logits that phrases point into the image, (P,); None as `presence`.
    """

    responses: Map
    before: Map
    presence: Values | None = None
    certainty: Values | None = None
    somewhere: Values | None = None


def map_features(evidence: MapEvidence, maps: Map, threshold: float) -> Values:
    """MAP_FEATURES of phrases whose post-processed maps (P, H, W) are cut at `threshold`: (P, features)."""
    raw, before, count = evidence.responses, evidence.before, len(maps)
    masks = maps > threshold
    sizes = masks.sum((1, 2))
    total, inside = _sums(raw), _sums(raw * masks)
    outside, common = total - inside, _sums(np.minimum(raw, before))
    either = total + _sums(before) - common  # the sum of the larger of both
    columns = {
        "peak": logit(raw.max((1, 2), initial=0).astype(np.float64)),
        "inside": logit(inside / np.maximum(sizes, 1)),
        "area": np.log(sizes / max(masks[0].size, 1) + _TINY) if count else sizes,
        "sharpness": inside / np.maximum(sizes + outside, _TINY),  # soft IoU of a map with its own mask
        "agreement": common / either.clip(_TINY),
        "parts": np.log1p(count_components(masks)),
        "presence": np.zeros(count) if evidence.presence is None else evidence.presence,
        "certainty": np.zeros(count) if evidence.certainty is None else evidence.certainty,
        "somewhere": np.zeros(count) if evidence.somewhere is None else evidence.somewhere,
    }
    return np.stack([np.asarray(columns[name], np.float64) for name in MAP_FEATURES], 1)


def _sums(maps: Map) -> Values:
    """The sum of each map (P, H, W), (P,)."""
    sums: Values = maps.sum((1, 2), dtype=np.float64)
    return sums


def expected_iou(features: Values, config: CalibrationConfig) -> Values:
    """The IoU that masks are expected to have, (P,), from their features (P, n)."""
    return _predicted(features, config.score_weights, "score_weights")


def presence_probability(features: Values, config: CalibrationConfig) -> Values:
    """The probability that what phrases name is in the image, (P,), from their features (P, n)."""
    if not config.presence_weights:
        return logistic(features[:, MAP_FEATURES.index("presence")])
    return _predicted(features, config.presence_weights, "presence_weights")


def _predicted(features: Values, weights: Sequence[float], name: str) -> Values:
    needed = len(MAP_FEATURES) + 1
    if len(weights) != needed:
        raise InputError(f"calibration.{name} has {len(weights)} numbers; this ppmn needs {needed}")
    return logistic(weights[0] + features @ np.asarray(weights[1:]))


def logit(probability: Values) -> Values:
    """The logit of probabilities, which are kept away from 0 and 1."""
    p = np.clip(probability, _TINY, 1 - _TINY)
    return np.log(p) - np.log1p(-p)


def logistic(x: Values) -> Values:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0, -x))
