"""What masks and pixels show of each segment: size, place, color, and the segment below it."""

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ppmn.data.panoptic import Category, PanopticImage, segment_positions
from ppmn.types import SegmentIds

_COLORS = ("white", "black", "grey", "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
COLOR_NAMES = ("", *_COLORS)  # the first is for pixels of no clear color
SIDES = ("left", "right", "top", "bottom", "middle")
_MIN_COLOR_FRACTION = 0.6  # of a mask's pixels that must have one color before it is named
_MIN_COLOR_AREA = 150  # pixels; no color is named below it
_SIDE = 0.4  # "on the left" = center in the left 40 %


@dataclass(frozen=True)
class Region:
    """One segment in its image; x, y and box are fractions of width and height."""

    id: int
    category: Category
    crowd: bool
    area: int
    area_fraction: float
    x: float
    y: float
    box: tuple[float, float, float, float]  # x0, y0, x1, y1
    color_fractions: tuple[float, ...]  # of the pixels under the mask, by COLOR_NAMES; empty without pixels
    below: int  # id of the segment under its lower border, 0 if none

    @property
    def color(self) -> str:
        """The color of most of its pixels, or nothing."""
        if not self.color_fractions or self.area < _MIN_COLOR_AREA:
            return ""
        best = max(range(len(COLOR_NAMES)), key=self.color_fractions.__getitem__)
        return COLOR_NAMES[best] if self.color_fractions[best] >= _MIN_COLOR_FRACTION else ""

    @property
    def two_colors(self) -> tuple[str, ...]:
        """Two colors that make up the mask between them, or nothing."""
        if self.area < _MIN_COLOR_AREA or not self.category.isthing or not self.color_fractions:
            return ()
        fractions = self.color_fractions
        second, first = sorted(range(1, len(COLOR_NAMES)), key=fractions.__getitem__)[-2:]
        both = fractions[second] >= 0.25 and fractions[first] + fractions[second] >= 0.7
        return (COLOR_NAMES[first], COLOR_NAMES[second]) if both else ()

    @property
    def centers(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The centers of the mask and of its box."""
        x0, y0, x1, y1 = self.box
        return (self.x, self.y), ((x0 + x1) / 2, (y0 + y1) / 2)

    @property
    def sides(self) -> frozenset[str]:
        """The sides of the image it is on, by both centers."""
        first, second = (_sides(x, y) for x, y in self.centers)
        wide = self.box[2] - self.box[0] > 0.75
        return (first & second) - ({"left", "right"} if wide else set())

    def may_be_on(self, side: str) -> bool:
        """Whether one of its centers is on that side."""
        return any(side in _sides(x, y) for x, y in self.centers)


def _sides(x: float, y: float) -> frozenset[str]:
    holds = {
        "left": x < _SIDE,
        "right": x > 1 - _SIDE,
        "top": y < _SIDE,
        "bottom": y > 1 - _SIDE,
        "middle": 0.3 < x < 0.7 and 0.3 < y < 0.7,
    }
    return frozenset(side for side, true in holds.items() if true)


def _color_index(r: int, g: int, b: int) -> int:
    """Index of a color in COLOR_NAMES, 0 where people would not agree on its name."""
    h, s, v = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
    hue = h * 360
    if v < 0.2 or (v < 0.28 and s < 0.35):
        name = "black"
    elif s < 0.13:
        name = "white" if v > 0.8 else "grey" if 0.3 < v < 0.72 else ""
    elif hue < 12 or hue >= 340:
        name = "red" if s > 0.55 and v > 0.35 else "pink" if v > 0.75 and 0.2 < s < 0.5 else ""
    elif hue < 45:
        if s > 0.6 and v > 0.75 and 18 <= hue <= 40:
            name = "orange"
        else:
            name = "brown" if s > 0.3 and 0.2 <= v < 0.62 else ""
    elif hue < 62:
        name = "yellow" if s > 0.45 and v > 0.6 else ""
    elif hue < 165:
        name = "green" if s > 0.2 and v > 0.15 and hue > 66 else ""
    elif hue < 255:
        name = "blue" if s > 0.22 and v > 0.25 and hue > 188 else ""
    elif hue < 300:
        name = "purple" if s > 0.25 and v > 0.25 and hue > 262 else ""
    else:
        name = "pink" if s > 0.2 and v > 0.55 else ""
    return COLOR_NAMES.index(name)


@cache
def _color_table() -> NDArray[np.uint8]:
    """Color index of every RGB triple at 5 bits per channel."""
    levels = range(4, 256, 8)
    return np.array([_color_index(r, g, b) for r in levels for g in levels for b in levels], np.uint8)


def color_indices(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Index into COLOR_NAMES of every pixel, (H, W)."""
    five_bits = (pixels >> 3).astype(np.int32)
    return _color_table()[(five_bits[..., 0] << 10) | (five_bits[..., 1] << 5) | five_bits[..., 2]]


def _extents(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """Center, first and last of each row of (n, L) counts, as fractions of L."""
    length, nonzero = counts.shape[1], counts > 0
    center = (counts @ (np.arange(length) + 0.5)) / np.maximum(counts.sum(1), 1)
    first, last = nonzero.argmax(1), length - nonzero[:, ::-1].argmax(1)
    return center / length, first / length, last / length


def find_regions(
    image: PanopticImage,
    categories: Mapping[int, Category],
    ids: SegmentIds,
    pixels: NDArray[np.uint8] | None,
) -> list[Region]:
    """One region per segment that has pixels in `ids`, in the order of the annotation."""
    height, width = ids.shape
    segments = [s for s in image.segments if s.category_id in categories]
    positions = segment_positions(ids, [s.id for s in segments])  # (H, W)
    rows = len(segments) + 1
    columns = np.bincount((positions * width + np.arange(width)).ravel(), minlength=rows * width)
    lines = np.bincount((positions * height + np.arange(height)[:, None]).ravel(), minlength=rows * height)
    x, x0, x1 = _extents(columns.reshape(rows, width))
    y, y0, y1 = _extents(lines.reshape(rows, height))
    areas = columns.reshape(rows, width).sum(1)
    fractions = np.zeros((rows, 0))
    if pixels is not None:
        k = len(COLOR_NAMES)
        counts = np.bincount((positions * k + color_indices(pixels)).ravel(), minlength=rows * k)
        fractions = counts.reshape(rows, k) / np.maximum(areas, 1)[:, None]
    return [
        Region(
            segment.id,
            categories[segment.category_id],
            segment.iscrowd,
            int(areas[n]),
            float(areas[n]) / ids.size,
            float(x[n]),
            float(y[n]),
            box := (float(x0[n]), float(y0[n]), float(x1[n]), float(y1[n])),
            tuple(fractions[n].tolist()),
            _below(ids, segment.id, box),
        )
        for n, segment in enumerate(segments, 1)
        if areas[n]
    ]


def _below(ids: SegmentIds, own: int, box: tuple[float, float, float, float]) -> int:
    """The segment with most pixels just under the middle of the lower border."""
    height, width = ids.shape
    y = min(int(box[3] * height) + 2, height - 1)
    x0, x1 = box[0] * 0.7 + box[2] * 0.3, box[0] * 0.3 + box[2] * 0.7
    below = ids[y, int(x0 * width) : int(x1 * width) + 1]
    below = below[(below != own) & (below > 0)]
    values, counts = np.unique(below, return_counts=True)
    return int(values[counts.argmax()]) if below.size else 0
