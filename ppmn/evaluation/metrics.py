"""Average Recall: the area under P(IoU >= t), which is the mean IoU.

Three protocols (docs/benchmark.md): `full` is the mean IoU itself; `ppmn2022` is the sum over 99,999
thresholds of the authors' code, in closed form; `png256` is the same sum of the two-stage baseline's soft
IoUs. Values here are fractions; `Scores` holds them from 0 to
100, as in the paper's table.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ppmn.distributed import gather_objects
from ppmn.errors import InputError
from ppmn.types import Mask

Protocol = Literal["full", "ppmn2022", "png256"]
PROTOCOLS: tuple[Protocol, ...] = ("full", "ppmn2022", "png256")
SPLITS = ("overall", "things", "stuff", "singulars", "plurals")  # the paper's
InstanceSplit = Literal["things_alone", "things_among", "plurals_some"]
INSTANCE_SPLITS: tuple[InstanceSplit, ...] = get_args(InstanceSplit)
CURVE_THRESHOLDS = tuple(i / 100 for i in range(101))


class PhraseKey(NamedTuple):
    """The identity of a phrase; image ids repeat between sources, so the source is part of it."""

    source: str
    image: int
    narrative: int
    phrase: int


@dataclass(frozen=True)
class PhraseScore:
    """One phrase: its IoU (NaN where truth and prediction are both empty) and the splits it belongs to."""

    iou: float
    thing: bool
    plural: bool
    empty: bool = False  # nothing in the ground truth
    missing: bool = False  # nothing was predicted: counts as zero
    instances: InstanceSplit | None = None  # where others of the kind matter; see docs/benchmark.md


class Interval(NamedTuple):
    """A mean and the bounds of its bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Average Recall (0 to 100; None where a split has no phrase), and what it was computed from."""

    protocol: Protocol
    average_recall: dict[str, float | None]
    interval: dict[str, Interval | None]  # 95 %, images resampled
    phrases: dict[str, int]
    curve: dict[str, list[float]]  # recall at CURVE_THRESHOLDS
    accuracy_50: float | None  # percentage with IoU > 0.5
    missing: int  # phrases with no prediction, counted as zero
    empty: int  # phrases with an empty ground truth; in `full` they count in no other figure
    empty_found: int  # of these, answered with an empty mask


def iou(prediction: ArrayLike, truth: ArrayLike, protocol: Protocol = "full") -> float:
    """Intersection over union of two masks of one size; NaN where both are empty."""
    if protocol == "png256":
        raise InputError(
            "protocol png256 is defined only for the regions of a two-stage model, not for a mask"
        )
    predicted, true = _mask(prediction), _mask(truth)
    if predicted.shape != true.shape:
        raise InputError(f"a predicted mask of shape {predicted.shape} does not fit a truth of {true.shape}")
    intersection, union = np.count_nonzero(predicted & true), np.count_nonzero(predicted | true)
    if union == 0:
        return math.nan
    if protocol == "ppmn2022":  # the authors divide in single precision
        return float(np.float32(intersection) / np.float32(union))
    return intersection / union


def average_recall(ious: Iterable[float], protocol: Protocol = "full") -> float:
    """Average Recall of a list of IoUs, 0 to 1. NaN is left out in `full` and a miss in `ppmn2022`."""
    values = np.fromiter(ious, np.float64)
    if protocol == "full":
        values = values[~np.isnan(values)]
    return _mean(_areas(values, protocol))


def recall_curve(ious: Iterable[float], thresholds: Sequence[float] = CURVE_THRESHOLDS) -> list[float]:
    """P(IoU >= t) for every threshold; NaN is a miss."""
    values = np.fromiter(ious, np.float64)
    hits = np.sort(values[~np.isnan(values)])
    reached = len(hits) - np.searchsorted(hits, thresholds, side="left")
    return (reached / max(len(values), 1)).tolist()


def bootstrap(
    values: ArrayLike, groups: Sequence[Hashable] | None = None, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Mean and 95 % percentile interval; whole groups are resampled (the phrases of an image, say)."""
    numbers = np.asarray(values, np.float64)
    if numbers.size == 0:
        raise InputError("a bootstrap needs at least 1 value, got 0")
    names = range(len(numbers)) if groups is None else groups
    order: dict[Hashable, int] = {}
    member = np.array([order.setdefault(name, len(order)) for name in names])
    sums, sizes = np.bincount(member, numbers), np.bincount(member)
    rng, means = np.random.default_rng(seed), np.empty(resamples)
    for start in range(0, resamples, 100):  # 100 at a time: memory stays small on the whole benchmark
        rows = min(100, resamples - start)
        drawn = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=rows)  # (100, G)
        means[start : start + rows] = (drawn @ sums) / (drawn @ sizes)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(_mean(numbers), float(low), float(high))


class AverageRecall:
    """Average Recall of many phrases: `update` once per phrase, `merge` or `gather`, then `compute`.

    A phrase is stored under its key, so one measured by two processes counts once, and the result does
    not depend on any order.
    """

    def __init__(self, protocol: Protocol = "full") -> None:
        if protocol not in PROTOCOLS:
            raise InputError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        self.protocol = protocol
        self.phrase_scores: dict[Any, PhraseScore] = {}

    def update(
        self,
        key: Hashable,
        prediction: ArrayLike | None,
        truth: ArrayLike,
        *,
        thing: bool,
        plural: bool,
        instances: InstanceSplit | None = None,
    ) -> float:
        """Measure one phrase and return its IoU; `prediction=None`: nothing was predicted."""
        true = _mask(truth)
        predicted = np.zeros_like(true) if prediction is None else prediction
        value = iou(predicted, true, self.protocol)
        self._add(key, PhraseScore(value, thing, plural, not true.any(), prediction is None, instances))
        return value

    def update_regions(
        self,
        key: Hashable,
        regions: Sequence[Mask] | None,
        truth: ArrayLike,
        *,
        thing: bool,
        plural: bool,
        instances: InstanceSplit | None = None,
    ) -> float:
        """Measure the regions chosen for one phrase by protocol `png256`; None: nothing was predicted."""
        if self.protocol != "png256":
            raise InputError(f"regions are measured by protocol png256, and this run's is {self.protocol}")
        from ppmn.baselines.png256_iou import png256_iou  # with torch, which other protocols do not need

        value = png256_iou(regions or [], truth)
        self._add(key, PhraseScore(value, thing, plural, not _mask(truth).any(), regions is None, instances))
        return value

    def merge(self, phrase_scores: Mapping[Any, PhraseScore]) -> None:
        """Add what another process measured."""
        for key, phrase in phrase_scores.items():
            self._add(key, phrase)

    def gather(self) -> None:
        """Add what every process of the running group measured."""
        for part in gather_objects(dict(self.phrase_scores)):
            self.merge(part)

    def compute(self) -> Scores:
        """All splits, the curve, the counts and the intervals of the phrases measured so far."""
        kept = self._counted()
        rows = [self.phrase_scores[k] for k in kept]
        ious = np.array([r.iou for r in rows], np.float64)
        areas, members = _areas(ious, self.protocol), _members(rows)
        images = [_image(k) for k in kept]
        empty = [m for m in self.phrase_scores.values() if m.empty]
        return Scores(
            protocol=self.protocol,
            average_recall={s: 100 * _mean(areas[m]) if m.any() else None for s, m in members.items()},
            interval={s: _interval(areas, images, m) for s, m in members.items()},
            phrases={s: int(m.sum()) for s, m in members.items()},
            curve={s: recall_curve(ious[m]) for s, m in members.items()},
            accuracy_50=100 * float(np.mean(ious > 0.5)) if rows else None,
            missing=sum(m.missing for m in self.phrase_scores.values()),
            empty=len(empty),
            empty_found=sum(math.isnan(m.iou) for m in empty),
        )

    def difference(self, other: "AverageRecall") -> tuple[dict[str, Interval | None], int]:
        """This run minus another (0 to 100) over the phrases of both, and how many are in one only."""
        if other.protocol != self.protocol:
            raise InputError(f"runs of protocols {self.protocol} and {other.protocol} cannot be compared")
        keys = sorted(set(self._counted()) & set(other._counted()))
        if not keys:
            raise InputError("the two runs have no phrase in common: they measured different data")
        ours = _areas(np.array([self.phrase_scores[k].iou for k in keys]), self.protocol)
        theirs = _areas(np.array([other.phrase_scores[k].iou for k in keys]), self.protocol)
        images, members = [_image(k) for k in keys], _members([self.phrase_scores[k] for k in keys])
        alone = len(self._counted()) + len(other._counted()) - 2 * len(keys)
        return {s: _interval(ours - theirs, images, m) for s, m in members.items()}, alone

    def reset(self) -> None:
        """Remove all phrases."""
        self.phrase_scores.clear()

    def _counted(self) -> list[Any]:
        """Keys of the phrases that count in the figures, in order."""
        return sorted(k for k, m in self.phrase_scores.items() if not (m.empty and self.protocol == "full"))

    def _add(self, key: Hashable, phrase: PhraseScore) -> None:
        previous = self.phrase_scores.setdefault(key, phrase)
        if repr(previous) != repr(phrase):  # repr, because NaN differs from itself
            raise InputError(f"phrase {key} was measured twice, as {previous} and as {phrase}")


def _mask(mask: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(mask)
    if np.issubdtype(array.dtype, np.floating):
        raise InputError(
            f"a mask holds booleans or integers, got {array.dtype}: apply a threshold to the map"
        )
    return array > 0


@cache
def _thresholds() -> NDArray[np.float64]:
    return np.arange(99_999, dtype=np.float64) * 1e-5


def _areas(ious: NDArray[np.float64], protocol: Protocol) -> NDArray[np.float64]:
    """What each phrase adds to the area under the curve; its mean is the Average Recall."""
    if protocol == "full":
        return ious
    reached = np.searchsorted(_thresholds(), ious, side="right")  # thresholds t_i <= IoU
    return np.where(np.isnan(ious), 0, reached) * 1e-5


def _mean(values: NDArray[np.float64]) -> float:
    """The mean, correctly rounded: the same whatever the order of the values."""
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan


def _interval(
    areas: NDArray[np.float64], images: Sequence[Hashable], members: NDArray[np.bool_]
) -> Interval | None:
    if not members.any():
        return None
    return bootstrap(100 * areas[members], [images[i] for i in np.flatnonzero(members).tolist()])


def _image(key: Any) -> Hashable:
    return key[:2] if isinstance(key, PhraseKey) else key


def _members(rows: Sequence[PhraseScore]) -> dict[str, NDArray[np.bool_]]:
    things = np.array([r.thing for r in rows], bool)
    plurals = np.array([r.plural for r in rows], bool)
    everything = np.ones(len(rows), bool)
    members = dict(zip(SPLITS, (everything, things, ~things, ~plurals, plurals), strict=True))
    return members | {s: np.array([r.instances == s for r in rows], bool) for s in INSTANCE_SPLITS}
