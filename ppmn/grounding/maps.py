"""From the network's maps to masks in the caller's pixels: post-processing, upsampling, thresholding."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppmn.grounding.components import find_runs, label_components
from ppmn.types import Box, Map, Mask

_BAND_PIXELS = 4_000_000  # upsampled at a time
SUPPRESSED = 0.9  # of the threshold: far enough below it that rounding does not bring a component back


def postprocess(
    responses: Map, *, threshold: float, relative_threshold: float, hysteresis_peak: float
) -> Map:
    """Maps (P, H, W) after the relative threshold and hysteresis, ready to be cut at `threshold`."""
    responses = apply_relative_threshold(responses, threshold, relative_threshold)
    return apply_hysteresis(responses, threshold, hysteresis_peak)


def apply_relative_threshold(responses: Map, threshold: float, relative_threshold: float) -> Map:
    """Raise each map (P, H, W) to the power that puts this fraction of its maximum at the threshold.

    A map that nowhere exceeds the threshold is unchanged: a phrase that is absent gets no mask.
    """
    if relative_threshold == 0 or not responses.size:
        return responses
    maximum = responses.max((1, 2), keepdims=True)  # (P, 1, 1)
    power = np.log(threshold) / np.log(relative_threshold * maximum.clip(min=threshold))
    return (responses ** np.where(maximum > threshold, power, 1)).astype(np.float32, copy=False)


def apply_hysteresis(responses: Map, threshold: float, hysteresis_peak: float) -> Map:
    """Suppress the components of each map (P, H, W) that nowhere reach this fraction of its maximum."""
    if hysteresis_peak == 0 or not responses.size:
        return responses
    above = responses > threshold
    runs = find_runs(above)
    if not len(runs.first):
        return responses
    values = responses[above]  # run after run
    peaks = np.maximum.reduceat(values, np.cumsum(runs.lengths) - runs.lengths)  # of each run
    highest = np.zeros(len(runs.first), responses.dtype)  # of each component
    np.maximum.at(highest, runs.component, peaks)
    wanted = hysteresis_peak * responses.max((1, 2))  # (P,)
    low = highest < wanted[runs.first // above[0].size]
    suppressed = np.repeat(low[runs.component], runs.lengths)
    kept = responses.copy()
    kept[above] = np.where(suppressed, np.minimum(values, SUPPRESSED * threshold), values)
    return kept


def label_parts(mask: Mask) -> tuple[NDArray[np.intp], int]:
    """The connected parts of a mask (H, W), numbered from 1, and their count; a shared corner connects."""
    parts, first = label_components(mask)
    return parts, len(first)


def encode_map(response: Map) -> dict[str, Any]:
    """A map in 8 bits for JSON: low + (high - low) * byte / 255, with the bytes of `data` in base64."""
    low, high = float(response.min()), float(response.max())
    scale = 255 / (high - low) if high > low else 0
    data = np.rint((response.astype(np.float64) - low) * scale).astype(np.uint8).tobytes()
    return {"low": low, "high": high, "data": base64.b64encode(data).decode("ascii")}


class MaskStats(NamedTuple):
    """What is known of a mask without its pixels."""

    area: int
    mean_response: float  # inside, 0 where the mask is empty
    box: Box | None  # tight, None where the mask is empty


@dataclass(frozen=True)
class MapGeometry:
    """How maps lie on an image: the image covers their upper left part, padding the rest."""

    height: int  # of the image
    width: int
    map_size: tuple[int, int]  # height and width of a map
    content_size: tuple[float, float]  # of the part that the image covers, which may end within a cell

    def resized(self, height: int, width: int) -> "MapGeometry":
        """The same for the image in another size."""
        return replace(self, height=height, width=width)

    def upsample(self, response: Map, rows: slice, columns: slice) -> Map:
        """A part of the map in the image's pixels, bilinear between the centres of cells."""
        above, below, y = self._neighbours(0, self.height, rows)
        left, right, x = self._neighbours(1, self.width, columns)
        band = response[above] * (1 - y)[:, None] + response[below] * y[:, None]  # (rows, W)
        upsampled = band[:, left] * (1 - x) + band[:, right] * x  # (rows, columns)
        return upsampled.astype(np.float32, copy=False)

    def response(self, response: Map) -> Map:
        """The whole map in the image's pixels."""
        return self.upsample(response, slice(0, self.height), slice(0, self.width))

    def mask(self, response: Map, threshold: float) -> Mask:
        """Where the upsampled map exceeds the threshold, (height, width)."""
        mask = np.zeros((self.height, self.width), bool)
        for where, values in self.bands(response, threshold):
            mask[where] = values > threshold
        return mask

    def stats(self, response: Map, threshold: float) -> MaskStats:
        """Area, mean response and box of the mask, without holding it."""
        area, total = 0, 0.0
        rows, columns = np.zeros(self.height, bool), np.zeros(self.width, bool)
        for (y, x), values in self.bands(response, threshold):
            inside = values > threshold
            area += int(np.count_nonzero(inside))
            total += float(values.sum(where=inside, dtype=np.float64))
            rows[y] |= inside.any(1)
            columns[x] |= inside.any(0)
        if not area:
            return MaskStats(0, 0.0, None)
        top, bottom = np.flatnonzero(rows)[[0, -1]].tolist()
        left, right = np.flatnonzero(columns)[[0, -1]].tolist()
        return MaskStats(area, total / area, (left, top, right - left + 1, bottom - top + 1))

    def bands(self, response: Map, threshold: float) -> Iterator[tuple[tuple[slice, slice], Map]]:
        """The part that may exceed the threshold, in bands, so that a large image takes little memory."""
        above = response > threshold
        if not above.any():
            return
        top, bottom = self._extent(0, self.height, np.flatnonzero(above.any(1)))
        left, right = self._extent(1, self.width, np.flatnonzero(above.any(0)))
        columns = slice(left, right)
        step = max(1, _BAND_PIXELS // (right - left))
        for start in range(top, bottom, step):
            rows = slice(start, min(start + step, bottom))
            yield (rows, columns), self.upsample(response, rows, columns)

    def points(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Centres (n, 2), x and y in the image's pixels, of flat map indices; padding is left out."""
        y, x = np.divmod(np.unique(indices), self.map_size[1])
        x = (x + 0.5) * self.width / self.content_size[1]
        y = (y + 0.5) * self.height / self.content_size[0]
        inside = (x < self.width) & (y < self.height)
        return np.stack([x[inside], y[inside]], 1).astype(np.float32)

    def _neighbours(
        self, axis: int, size: int, pixels: slice
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], Map]:
        """The two cells that each pixel lies between, and its distance from the first."""
        at = (np.arange(pixels.start, pixels.stop) + 0.5) * (self.content_size[axis] / size) - 0.5
        at = at.clip(0, self.map_size[axis] - 1)
        before = at.astype(np.intp)
        after = np.minimum(before + 1, self.map_size[axis] - 1)
        return before, after, (at - before).astype(np.float32)

    def _extent(self, axis: int, size: int, cells: NDArray[np.intp]) -> tuple[int, int]:
        """The pixels that the first to the last of these cells reach."""
        scale = size / self.content_size[axis]
        start = int(np.floor((cells[0] - 0.5) * scale - 0.5))
        stop = int(np.ceil((cells[-1] + 1.5) * scale - 0.5)) + 1
        return min(max(start, 0), size - 1), max(min(stop, size), 1)
