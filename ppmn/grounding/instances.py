"""The objects of a phrase that names several: one map each, inside the map of the phrase. NumPy only."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ppmn.grounding.maps import SUPPRESSED, label_parts
from ppmn.types import Map, Mask

Cells = NDArray[np.intp]  # (n, 2), row and column in a map
DrawObjects = Callable[[Cells], Map]  # the objects at cells, whatever they are: probabilities (n, H, W)

_MAX_POINTS = 24  # from which objects are drawn at a time
_MAX_DRAWS = 3  # further ones are drawn in what is not covered yet
_MIN_INSIDE = 0.6  # of an object's mask that must lie inside that of the phrase
_MAX_OVERLAP = 0.4  # of the smaller of two objects' masks; above it they are the same object
_MIN_PART = 0.02  # of the phrase's mask: smaller connected parts are specks
_MIN_UNCOVERED = 0.1  # of the phrase's mask: less than this is not worth drawing again


def find_instances(response: Map, threshold: float, draw: DrawObjects | None) -> list[Map]:
    """Maps of the objects in a phrase's post-processed map (H, W), each ready to be cut at `threshold`.

    Args:
        response: The map of the phrase.
        threshold: What the map is cut at.
        draw: Draws the objects at cells of the map; None takes connected parts of the mask.

    Returns:
        One map per object, the surest first; none where the mask is empty.
    """
    if not (response > threshold).any():
        return []
    if draw is None or not 0 < threshold < 1:
        return connected_parts(response, threshold)
    return drawn_objects(response, threshold, draw) or connected_parts(response, threshold)


def connected_parts(response: Map, threshold: float) -> list[Map]:
    """One map per connected part of the mask that is no speck, the largest first."""
    parts, count = label_parts(response > threshold)
    sizes = np.bincount(parts.ravel(), minlength=count + 1)[1:]
    order = [
        int(part) for part in np.argsort(-sizes, kind="stable") if sizes[part] >= _MIN_PART * sizes.sum()
    ]
    low = np.minimum(response, np.float32(SUPPRESSED * threshold))
    return [np.where(parts == part + 1, response, low) for part in order]


def drawn_objects(response: Map, threshold: float, draw: DrawObjects) -> list[Map]:
    """Objects drawn from cells inside the mask, duplicates suppressed, limited to the phrase's own map."""
    mask = response > threshold
    power = np.log(threshold) / np.log(0.5)  # an object's 0.5 becomes the phrase's threshold
    kept: list[Map] = []
    covered = np.zeros_like(mask)
    for _ in range(_MAX_DRAWS):
        cells = spread_cells(mask & ~covered, _MAX_POINTS)
        if not len(cells):
            break
        for found in _surest_first(draw(cells), mask):
            own = (found > 0.5) & mask
            if all(_overlap(own, (other > threshold)) <= _MAX_OVERLAP for other in kept):
                kept.append(np.minimum(found.astype(np.float32) ** power, response).astype(np.float32))
                covered |= own
        if np.count_nonzero(mask & ~covered) < _MIN_UNCOVERED * np.count_nonzero(mask):
            break
    return kept


def spread_cells(mask: Mask, limit: int) -> Cells:
    """At most `limit` cells of a mask, spread evenly over it; every connected part has one first."""
    parts, count = label_parts(mask)
    rows, columns = np.nonzero(mask)
    member = parts[rows, columns]
    chosen = []
    for part in range(1, count + 1):
        own = np.flatnonzero(member == part)
        centre = np.array([rows[own].mean(), columns[own].mean()])
        chosen.append(own[np.argmin((rows[own] - centre[0]) ** 2 + (columns[own] - centre[1]) ** 2)])
    chosen.sort(key=lambda cell: -int(np.count_nonzero(member == member[cell])))
    chosen = chosen[:limit]
    places = np.stack([rows, columns], 1)
    distance = np.full(len(places), np.inf)
    for cell in chosen:
        distance = np.minimum(distance, ((places - places[cell]) ** 2).sum(1))
    while chosen and len(chosen) < limit and distance.max() > 1:
        chosen.append(np.argmax(distance))  # farthest from all that are chosen
        distance = np.minimum(distance, ((places - places[chosen[-1]]) ** 2).sum(1))
    return places[chosen] if chosen else np.zeros((0, 2), np.intp)


def _surest_first(objects: Map, mask: Mask) -> list[Map]:
    """Objects that lie inside the phrase's mask, those with the sharpest masks first."""
    masks = objects > 0.5
    sizes = masks.sum((1, 2))
    inside = (masks & mask).sum((1, 2)) / np.maximum(sizes, 1)
    sharpness = (objects * masks).sum((1, 2)) / np.maximum(sizes + (objects * ~masks).sum((1, 2)), 1e-6)
    order = np.argsort(-sharpness * inside, kind="stable")
    return [objects[n] for n in order if sizes[n] and inside[n] >= _MIN_INSIDE]


def _overlap(one: Mask, other: Mask) -> float:
    """Intersection over the smaller of two masks; 1 where one is empty."""
    smaller = min(np.count_nonzero(one), np.count_nonzero(other))
    return np.count_nonzero(one & other) / smaller if smaller else 1.0
