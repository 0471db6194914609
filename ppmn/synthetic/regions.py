"""What the masks and the pixels say of each segment: size, place, colour, what it stands on."""

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ppmn.data.panoptic import Category, PanopticImage

COLOURS = (
    "",
    "white",
    "black",
    "grey",
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "pink",
    "brown",
)
AGREE = 0.6  # share of a mask's pixels that must have one colour before it is said
SMALL = 150  # pixels under which no colour is said
SIDE = 0.4  # "on the left" = centre in the left 40 %
PLACES = ("left", "right", "top", "bottom", "middle")


@dataclass(frozen=True)
class Region:
    """One segment as it lies in the photo; x, y and box are shares of width and height."""

    id: int
    category: Category
    crowd: bool
    area: int
    share: float
    x: float
    y: float
    box: tuple[float, float, float, float]  # x0, y0, x1, y1
    colours: tuple[float, ...]  # share of the pixels under the mask, by COLOURS
    below: int  # id of the segment under its lower edge, 0 if none

    @property
    def colour(self) -> str:
        """The colour its pixels agree on, or nothing."""
        best = max(range(len(self.colours)), key=self.colours.__getitem__) if self.colours else 0
        return COLOURS[best] if best and self.area >= SMALL and self.colours[best] >= AGREE else ""

    @property
    def two_colours(self) -> tuple[str, ...]:
        """Two colours that share the mask between them, or nothing."""
        if self.area < SMALL or not self.category.isthing or not self.colours:
            return ()
        second, first = sorted(range(1, len(COLOURS)), key=self.colours.__getitem__)[-2:]
        shared = self.colours[second] >= 0.25 and self.colours[first] + self.colours[second] >= 0.7
        return (COLOURS[first], COLOURS[second]) if shared else ()

    @property
    def centres(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Of the mask and of its box: a place is said where both agree."""
        x0, y0, x1, y1 = self.box
        return (self.x, self.y), ((x0 + x1) / 2, (y0 + y1) / 2)

    @property
    def places(self) -> frozenset[str]:
        """Every place word that holds."""
        first, second = (_places(x, y) for x, y in self.centres)
        wide = self.box[2] - self.box[0] > 0.75
        return (first & second) - ({"left", "right"} if wide else set())

    def near(self, place: str) -> bool:
        """Whether somebody might say the place of it."""
        return any(place in _places(x, y) for x, y in self.centres)


def _places(x: float, y: float) -> frozenset[str]:
    held = {
        "left": x < SIDE,
        "right": x > 1 - SIDE,
        "top": y < SIDE,
        "bottom": y > 1 - SIDE,
        "middle": 0.3 < x < 0.7 and 0.3 < y < 0.7,
    }
    return frozenset(p for p, h in held.items() if h)


def _colour_of(r: int, g: int, b: int) -> int:
    """Index of a colour's name in COLOURS, 0 where people would not agree."""
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
    return COLOURS.index(name)


@cache
def _colour_table() -> NDArray[np.uint8]:
    """Colour name of every RGB triple at 5 bits a channel."""
    levels = range(4, 256, 8)
    return np.array([_colour_of(r, g, b) for r in levels for g in levels for b in levels], np.uint8)


def colour_codes(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Index into COLOURS of every pixel, (H, W)."""
    five = (pixels >> 3).astype(np.int32)
    return _colour_table()[(five[..., 0] << 10) | (five[..., 1] << 5) | five[..., 2]]


def _spans(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """Centre, first and last of each row of (n, L) counts, as shares of L."""
    length, held = counts.shape[1], counts > 0
    centre = (counts @ (np.arange(length) + 0.5)) / np.maximum(counts.sum(1), 1)
    first, last = held.argmax(1), length - held[:, ::-1].argmax(1)
    return centre / length, first / length, last / length


def _index(ids: NDArray[np.int32], known: list[int]) -> NDArray[np.int32]:
    """Number from 1 of each pixel's segment in `known`; by remainders, for ids reach 2^24."""
    size = 1021
    while len({id % size for id in known}) < len(known):
        size += 2
    table, keys = np.zeros(size, np.int32), np.array([-1, *known], np.int32)
    for n, id in enumerate(known, 1):
        table[id % size] = n
    index = table[ids % size]
    return np.where(keys[index] == ids, index, 0)


def regions(
    image: PanopticImage,
    categories: Mapping[int, Category],
    ids: NDArray[np.int32],
    pixels: NDArray[np.uint8] | None,
) -> list[Region]:
    """One Region a segment that has pixels in `ids`, in the order of the annotation."""
    height, width = ids.shape
    known = [s for s in image.segments if s.category_id in categories]
    index = _index(ids, [s.id for s in known])  # (H, W), 0 = unlabelled
    rows = len(known) + 1
    columns = np.bincount((index * width + np.arange(width)).ravel(), minlength=rows * width)
    lines = np.bincount((index * height + np.arange(height)[:, None]).ravel(), minlength=rows * height)
    x, x0, x1 = _spans(columns.reshape(rows, width))
    y, y0, y1 = _spans(lines.reshape(rows, height))
    areas = columns.reshape(rows, width).sum(1)
    shares = np.zeros((rows, 0))
    if pixels is not None:
        k = len(COLOURS)
        counts = np.bincount((index * k + colour_codes(pixels)).ravel(), minlength=rows * k).reshape(rows, k)
        shares = counts / np.maximum(areas, 1)[:, None]
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
            tuple(shares[n].tolist()),
            _below(ids, segment.id, box),
        )
        for n, segment in enumerate(known, 1)
        if areas[n]
    ]


def _below(ids: NDArray[np.int32], own: int, box: tuple[float, float, float, float]) -> int:
    """The other segment met most often just under the middle of the lower edge."""
    height, width = ids.shape
    y = min(int(box[3] * height) + 2, height - 1)
    x0, x1 = box[0] * 0.7 + box[2] * 0.3, box[0] * 0.3 + box[2] * 0.7
    met = ids[y, int(x0 * width) : int(x1 * width) + 1]
    met = met[(met != own) & (met > 0)]
    values, counts = np.unique(met, return_counts=True)
    return int(values[counts.argmax()]) if met.size else 0
