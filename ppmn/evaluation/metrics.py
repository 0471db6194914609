"""Average Recall: the area under P(IoU >= t), which is the mean IoU.

Two protocols (docs/benchmark.md): `full` is the mean IoU itself; `ppmn2022` is the sum over 99,999
thresholds that the authors' code takes, in closed form. Here values are fractions; `Scores` holds them
from 0 to 100, as in the paper's table.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ppmn.errors import InputError

Protocol = Literal["full", "ppmn2022"]
PROTOCOLS: tuple[Protocol, ...] = ("full", "ppmn2022")
SPLITS = ("overall", "things", "stuff", "singulars", "plurals")
CURVE_THRESHOLDS = tuple(i / 100 for i in range(101))


class PhraseKey(NamedTuple):
    """What a phrase is known by; image ids repeat between sources, so the source is part of it."""

    source: str
    image: int
    narrative: int
    phrase: int


@dataclass(frozen=True)
class Measured:
    """One phrase: its IoU (NaN where truth and prediction are both empty) and the splits it belongs to."""

    iou: float
    thing: bool
    plural: bool
    empty: bool = False  # nothing in the ground truth
    missing: bool = False  # nothing was predicted: counts as zero


class Interval(NamedTuple):
    """A mean and the bounds of its bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Average Recall (0 to 100; None where a split has no phrase), and what it was taken over."""

    protocol: Protocol
    average_recall: dict[str, float | None]
    interval: dict[str, Interval | None]  # 95 %, photos resampled
    phrases: dict[str, int]
    curve: dict[str, list[float]]  # recall at CURVE_THRESHOLDS
    accuracy_50: float | None  # share with IoU > 0.5
    missing: int  # phrases with no prediction, counted as zero
    empty: int  # phrases with an empty ground truth; in `full` they are in no other figure
    empty_found: int  # of these, answered with an empty mask


def iou(prediction: ArrayLike, truth: ArrayLike, protocol: Protocol = "full") -> float:
    """Intersection over union of two masks of one size; NaN where both are empty."""
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
    """Mean and 95 % percentile interval. Whole groups are drawn (the phrases of one photo hang together)."""
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


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], groups: Sequence[Hashable] | None = None
) -> Interval:
    """Mean of ours - theirs over the same phrases, with its bootstrap interval."""
    if len(ours) != len(theirs):
        raise InputError(f"paired runs need one value a phrase each, got {len(ours)} and {len(theirs)}")
    return bootstrap(np.subtract(ours, theirs), groups)


class AverageRecall:
    """Average Recall of many phrases, a phrase at a time: `update`, `merge` or `gather`, `compute`, `reset`.

    A phrase is held under its key, so one seen by two processes counts once, and the result does not
    depend on the order in which phrases came or processes were merged.
    """

    def __init__(self, protocol: Protocol = "full") -> None:
        if protocol not in PROTOCOLS:
            raise InputError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        self.protocol = protocol
        self.measured: dict[Any, Measured] = {}

    def update(
        self, key: Hashable, prediction: ArrayLike | None, truth: ArrayLike, *, thing: bool, plural: bool
    ) -> float:
        """Measure one phrase and return its IoU; `prediction=None` says that there is none."""
        true = _mask(truth)
        predicted = np.zeros_like(true) if prediction is None else prediction
        value = iou(predicted, true, self.protocol)
        self._add(key, Measured(value, thing, plural, not true.any(), prediction is None))
        return value

    def merge(self, measured: Mapping[Any, Measured]) -> None:
        """Take over what another process measured."""
        for key, phrase in measured.items():
            self._add(key, phrase)

    def gather(self) -> None:
        """Take over what every process of the running group measured; alone, nothing happens."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return
        parts: list[dict[Any, Measured]] = [{}] * dist.get_world_size()
        dist.all_gather_object(parts, self.measured)
        for part in parts:
            self.merge(part)

    def compute(self) -> Scores:
        """All five splits, the curve, the counts and the intervals of what was measured so far."""
        kept = self._counted()
        rows = [self.measured[k] for k in kept]
        ious = np.array([r.iou for r in rows], np.float64)
        areas, members = _areas(ious, self.protocol), _members(rows)
        photos = [_photo(k) for k in kept]
        empty = [m for m in self.measured.values() if m.empty]
        return Scores(
            protocol=self.protocol,
            average_recall={s: 100 * _mean(areas[m]) if m.any() else None for s, m in members.items()},
            interval={s: _interval(areas, photos, m) for s, m in members.items()},
            phrases={s: int(m.sum()) for s, m in members.items()},
            curve={s: recall_curve(ious[m]) for s, m in members.items()},
            accuracy_50=100 * float(np.mean(ious > 0.5)) if rows else None,
            missing=sum(m.missing for m in self.measured.values()),
            empty=len(empty),
            empty_found=sum(math.isnan(m.iou) for m in empty),
        )

    def difference(self, other: "AverageRecall") -> tuple[dict[str, Interval | None], int]:
        """This run minus another (0 to 100) over the phrases of both, and how many are in one only."""
        if other.protocol != self.protocol:
            raise InputError(f"a run by protocol {self.protocol} does not compare to one by {other.protocol}")
        keys = sorted(set(self._counted()) & set(other._counted()))
        if not keys:
            raise InputError("the two runs have no phrase in common: they measured other data")
        ours = _areas(np.array([self.measured[k].iou for k in keys]), self.protocol)
        theirs = _areas(np.array([other.measured[k].iou for k in keys]), self.protocol)
        photos, members = [_photo(k) for k in keys], _members([self.measured[k] for k in keys])
        alone = len(self._counted()) + len(other._counted()) - 2 * len(keys)
        return {s: _interval(ours - theirs, photos, m) for s, m in members.items()}, alone

    def reset(self) -> None:
        """Forget everything measured."""
        self.measured.clear()

    def _counted(self) -> list[Any]:
        """Keys of the phrases that the figures are taken over, in order."""
        return sorted(k for k, m in self.measured.items() if not (m.empty and self.protocol == "full"))

    def _add(self, key: Hashable, phrase: Measured) -> None:
        known = self.measured.setdefault(key, phrase)
        if repr(known) != repr(phrase):  # repr, because NaN differs from itself
            raise InputError(f"phrase {key} was measured twice, as {known} and as {phrase}")


def _mask(mask: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(mask)
    if np.issubdtype(array.dtype, np.floating):
        raise InputError(
            f"a mask holds booleans or integers, got {array.dtype}: cut the map at its threshold"
        )
    return array > 0


@cache
def _thresholds() -> NDArray[np.float64]:
    return np.arange(99_999, dtype=np.float64) * 1e-5


def _areas(ious: NDArray[np.float64], protocol: Protocol) -> NDArray[np.float64]:
    """What each phrase adds to the area under the curve; the mean of it is Average Recall."""
    if protocol == "full":
        return ious
    reached = np.searchsorted(_thresholds(), ious, side="right")  # thresholds t_i <= IoU
    return np.where(np.isnan(ious), 0, reached) * 1e-5


def _mean(values: NDArray[np.float64]) -> float:
    """The mean, correctly rounded: the same whatever the order of the values."""
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan


def _interval(
    areas: NDArray[np.float64], photos: Sequence[Hashable], members: NDArray[np.bool_]
) -> Interval | None:
    if not members.any():
        return None
    return bootstrap(100 * areas[members], [photos[i] for i in np.flatnonzero(members).tolist()])


def _photo(key: Any) -> Hashable:
    return key[:2] if isinstance(key, PhraseKey) else key


def _members(rows: Sequence[Measured]) -> dict[str, NDArray[np.bool_]]:
    things = np.array([r.thing for r in rows], bool)
    plurals = np.array([r.plural for r in rows], bool)
    everything = np.ones(len(rows), bool)
    return dict(zip(SPLITS, (everything, things, ~things, ~plurals, plurals), strict=True))
