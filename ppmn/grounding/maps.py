"""Between the network's grid and the caller's pixels: the one place where the step is taken."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label

from ppmn.types import Box, Map

BAND = 4_000_000  # pixels that are enlarged at a time
AROUND = np.array([np.zeros((3, 3)), np.ones((3, 3)), np.zeros((3, 3))])  # eight neighbours in one map
UNDER = 0.9  # of the threshold: what a weak part is brought to


def postprocess(responses: Map, threshold: float, edge: float, peak: float) -> Map:
    """Maps (P, H, W) that the threshold cuts as a model's `edge` and `peak` ask."""
    return apply_hysteresis(apply_relative_threshold(responses, threshold, edge), threshold, peak)


def apply_relative_threshold(responses: Map, threshold: float, edge: float) -> Map:
    """Maps (P, H, W) bent so that each crosses the threshold where it has `edge` of its highest response.

    A map that nowhere passes the threshold stays as it is: what is not there gets no mask.
    """
    if edge == 0 or not responses.size:
        return responses
    highest = responses.max((1, 2), keepdims=True)  # (P, 1, 1)
    power = np.log(threshold) / np.log(edge * highest.clip(min=threshold))
    return (responses ** np.where(highest > threshold, power, 1)).astype(np.float32, copy=False)


def apply_hysteresis(responses: Map, threshold: float, peak: float) -> Map:
    """Maps (P, H, W) without weak parts: those over the threshold that nowhere reach `peak` of the highest.

    What is left out comes to lie a little under the threshold, so that rounding does not bring it back.
    """
    if peak == 0 or not responses.size:
        return responses
    above = responses > threshold
    strong = above & (responses >= peak * responses.max((1, 2), keepdims=True))
    parts, count = label(above, AROUND)  # a part lies within one map
    kept = np.zeros(count + 1, bool)
    kept[parts[strong]] = True
    return np.where(above & ~kept[parts], np.minimum(responses, UNDER * threshold), responses)


class Measured(NamedTuple):
    """A mask without its pixels."""

    area: int
    score: float  # mean response inside, 0 where the mask is empty
    box: Box | None  # tight, None where the mask is empty


@dataclass(frozen=True)
class MapGeometry:
    """How maps lie over a photo: the photo covers the upper left of the grid, padding the rest."""

    height: int  # the caller's pixels
    width: int
    map_size: tuple[int, int]  # height and width of a map
    content_size: tuple[float, float]  # the part of it that the image covers, in fractions of a cell

    def resized(self, height: int, width: int) -> "MapGeometry":
        """The same photo in another size."""
        return replace(self, height=height, width=width)

    def enlarge(self, response: Map, rows: tuple[int, int], columns: tuple[int, int]) -> Map:
        """A part of the map in the caller's pixels, bilinear between the centres of cells."""
        above, below, y = self._taps(0, self.height, *rows)
        left, right, x = self._taps(1, self.width, *columns)
        band = response[above] * (1 - y)[:, None] + response[below] * y[:, None]  # (rows, W/stride)
        enlarged = band[:, left] * (1 - x) + band[:, right] * x
        return enlarged.astype(np.float32, copy=False)

    def response(self, response: Map) -> Map:
        """The whole map in the caller's pixels."""
        return self.enlarge(response, (0, self.height), (0, self.width))

    def bands(self, response: Map, threshold: float) -> Iterator[tuple[tuple[slice, slice], Map]]:
        """The part that may pass the threshold, in bands, so that a large photo takes little memory."""
        above = response > threshold
        if not above.any():
            return
        top, bottom = self._extent(0, self.height, np.flatnonzero(above.any(1)))
        left, right = self._extent(1, self.width, np.flatnonzero(above.any(0)))
        step = max(1, BAND // (right - left))
        for row in range(top, bottom, step):
            stop = min(row + step, bottom)
            yield (
                (slice(row, stop), slice(left, right)),
                self.enlarge(response, (row, stop), (left, right)),
            )

    def mask(self, response: Map, threshold: float) -> NDArray[np.bool_]:
        """Where the enlarged map passes the threshold, (height, width)."""
        mask = np.zeros((self.height, self.width), bool)
        for where, values in self.bands(response, threshold):
            mask[where] = values > threshold
        return mask

    def measure(self, response: Map, threshold: float) -> Measured:
        area, total = 0, 0.0
        rows, columns = np.zeros(self.height, bool), np.zeros(self.width, bool)
        for (y, x), values in self.bands(response, threshold):
            inside = values > threshold
            area += int(np.count_nonzero(inside))
            total += float(values.sum(where=inside, dtype=np.float64))
            rows[y] |= inside.any(1)
            columns[x] |= inside.any(0)
        if not area:
            return Measured(0, 0.0, None)
        (top, bottom), (left, right) = (np.flatnonzero(axis)[[0, -1]].tolist() for axis in (rows, columns))
        return Measured(area, total / area, (left, top, right - left + 1, bottom - top + 1))

    def points(self, flat: NDArray[np.int64], width: int) -> NDArray[np.float32]:
        """Centres (x, y) in the caller's pixels of flat cells of a map `width` wide; padding is left out."""
        y, x = np.divmod(np.unique(flat), width)
        x = (x + 0.5) * self.width / self.content_size[1]
        y = (y + 0.5) * self.height / self.content_size[0]
        own = (x < self.width) & (y < self.height)
        return np.stack([x[own], y[own]], 1).astype(np.float32)  # (n, 2)

    def _taps(
        self, axis: int, size: int, start: int, stop: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], Map]:
        """Of each pixel the two cells it lies between and how far it is from the first."""
        at = (np.arange(start, stop) + 0.5) * (self.content_size[axis] / size) - 0.5
        at = at.clip(0, self.map_size[axis] - 1)
        before = at.astype(np.intp)
        after = np.minimum(before + 1, self.map_size[axis] - 1)
        return before, after, (at - before).astype(np.float32)

    def _extent(self, axis: int, size: int, cells: NDArray[np.intp]) -> tuple[int, int]:
        """The pixels that any of the marked cells reaches."""
        scale = size / self.content_size[axis]
        start = int(np.floor((cells[0] - 0.5) * scale - 0.5))
        stop = int(np.ceil((cells[-1] + 1.5) * scale - 0.5)) + 1
        return min(max(start, 0), size - 1), max(min(stop, size), 1)
