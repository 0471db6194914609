"""Polygons filled again."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from ppmn.types import Mask


def filled(polygons: Iterable[ArrayLike], shape: tuple[int, ...]) -> Mask:
    """The pixels whose centre is inside: those with an odd number of sides to their left."""
    crossings = np.zeros((shape[0], shape[1] + 1), np.uint8)
    for polygon in map(np.asarray, polygons):
        for (x, y), (u, v) in zip(polygon, np.roll(polygon, -1, 0), strict=True):
            rows = np.arange(np.ceil(min(y, v) - 0.5), np.ceil(max(y, v) - 0.5)).astype(int)
            if len(rows):
                columns = np.ceil(x + (rows + 0.5 - y) * (u - x) / (v - y) - 0.5).astype(int)
                crossings[rows, columns] ^= 1
    return np.bitwise_xor.accumulate(crossings, 1)[:, :-1].astype(bool)


def iou(a: Mask, b: Mask) -> float:
    return float((a & b).sum() / (a | b).sum())
