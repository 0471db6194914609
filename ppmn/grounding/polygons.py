"""The outlines of a mask as polygons.

None of numpy, Pillow and pycocotools traces outlines, so it is done here. An outline runs along the
sides of pixels: its corners are whole numbers from 0 to the image's width and height, and filling it
gives back the mask exactly. Pixels that touch only at a corner belong to different parts.

Polygons in annotation files have no holes. A hole is therefore joined to the outline around it by a cut of
no width, which the polygon runs along twice; filled, the hole stays open.
"""

from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ppmn.grounding.components import label_components
from ppmn.types import Mask

Polygon = NDArray[np.float64]  # (points, 2): x, y; the last point is joined to the first
_Vertex = tuple[int, int]
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up: clockwise on the screen
_UP, _DOWN = 3, 1
_MAX_CHANGE = 0.04  # of a part's area, by simplification


def mask_polygons(mask: Mask, *, tolerance: float = 1.0) -> list[Polygon]:
    """The connected parts of a mask, each as one polygon.

    Args:
        mask: (height, width).
        tolerance: In pixels, how far an outline may move to have fewer points. Only a part that is large
            for the length of its outline is simplified: `tolerance` times the length is at most 4 % of
            its area. All other parts are exact, and with 0 every part is.

    Returns:
        Polygons in pixels, the largest first; none for an empty mask.
    """
    if not mask.any():
        return []
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    top, left = int(rows[0]), int(columns[0])
    part = mask[top : rows[-1] + 1, left : columns[-1] + 1]
    rings = _trace(_with_cuts(part))
    polygons = []
    for ring in sorted(rings, key=_area, reverse=True):
        large = tolerance * len(ring) <= _MAX_CHANGE * _area(ring)
        points = _simplified(ring, tolerance) if large else _corners(ring)
        polygons.append(points + np.array([left, top], np.float64))
    return polygons


def _sides(mask: Mask) -> dict[_Vertex, list[int]]:
    """The sides between mask and background: by start point, their directions; the mask is on the right."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    neighbours = (padded[:-2, 1:-1], padded[1:-1, 2:], padded[2:, 1:-1], padded[1:-1, :-2])
    starts = ((0, 0), (1, 0), (1, 1), (0, 1))  # of a pixel's upper, right, lower and left side
    sides = defaultdict(list)
    for direction, (other, (x, y)) in enumerate(zip(neighbours, starts, strict=True)):
        found = np.argwhere(inside & ~other)[:, ::-1] + (x, y)
        for vertex in map(tuple, found.tolist()):
            sides[vertex].append(direction)
    return sides


def _with_cuts(mask: Mask) -> dict[_Vertex, list[int]]:
    """The sides of a mask, and a cut from the highest corner of each hole straight up to the next side."""
    sides = _sides(mask)
    background = np.pad(~mask, 1, constant_values=True)
    _, (_, *holes) = label_components(background)  # the first is outside
    for first in holes:
        y, x = divmod(int(first), background.shape[1])
        at = (x - 1, y - 1)
        cut = [at]
        while at == cut[0] or at not in sides:
            at = (at[0], at[1] - 1)
            cut.append(at)
        for below, above in pairwise(cut):
            sides[below].append(_UP)
            sides[above].append(_DOWN)
    return sides


def _trace(sides: dict[_Vertex, list[int]]) -> list[Polygon]:
    """Follow the sides to closed rings, turning right, around the mask, wherever it is possible."""
    left = {(vertex, direction): None for vertex, directions in sides.items() for direction in directions}
    rings = []
    while left:
        ring, start = [], next(iter(left))
        side = start
        while side in left:
            del left[side]
            (x, y), direction = side
            ring.append((x, y))
            to = (x + _STEPS[direction][0], y + _STEPS[direction][1])
            turns = ((direction + turn) % 4 for turn in (1, 0, 3, 2))  # right, straight on, left, back
            side = (to, next(turn for turn in turns if turn in sides[to]))
        rings.append(np.array(ring, np.float64))
    return rings


def _area(ring: Polygon) -> float:
    (x, y), (next_x, next_y) = ring.T, np.roll(ring, -1, 0).T
    return float(x @ next_y - next_x @ y) / 2


def _corners(ring: Polygon) -> Polygon:
    """The points of a ring where its direction changes."""
    steps = np.roll(ring, -1, 0) - ring
    return ring[(steps != np.roll(steps, 1, 0)).any(1)]


def _simplified(ring: Polygon, tolerance: float) -> Polygon:
    """Ramer, Douglas and Peucker's algorithm on a closed ring."""
    points = _corners(ring)
    closed = np.vstack([points, points[:1]])
    far = int(((points - points[0]) ** 2).sum(1).argmax())
    kept, spans = {0, far}, [(0, far), (far, len(points))]
    while spans:
        start, end = spans.pop()
        if end - start < 2:
            continue
        distances = _segment_distances(closed[start + 1 : end], closed[start], closed[end])
        if distances.max() > tolerance:
            middle = start + 1 + int(distances.argmax())
            kept.add(middle)
            spans += [(start, middle), (middle, end)]
    return points[sorted(kept)]


def _segment_distances(points: Polygon, start: Polygon, end: Polygon) -> NDArray[np.float64]:
    along = end - start
    length = float(along @ along)
    t = np.clip((points - start) @ along / length, 0, 1) if length else np.zeros(len(points))
    return np.asarray(np.hypot(*(points - start - t[:, None] * along).T))
