"""Connected components of masks, from their horizontal runs of pixels."""

import numpy as np
from numpy.typing import NDArray

from ppmn.types import Mask


def label_components(mask: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the components of a mask (H, W); pixels that share a corner are connected.

    Returns:
        Labels (H, W), 0 outside of the mask and from 1 on in the order of first pixels; and the flat index of
        the first pixel of each component, row by row.
    """
    height, width = mask.shape
    padded = np.zeros((height, width + 2), np.int8)
    padded[:, 1:-1] = mask
    changes = np.diff(padded, axis=1).ravel()  # rows of width + 1 places
    starts, ends = np.flatnonzero(changes == 1), np.flatnonzero(changes == -1)
    component = _connect(starts, ends, width + 1)
    first, component = np.unique(component, return_inverse=True)
    labels = np.zeros(mask.shape, np.int64)
    labels[mask] = np.repeat(component + 1, ends - starts)
    row, column = np.divmod(starts[first], width + 1)
    return labels, row * width + column


def _connect(starts: NDArray[np.int64], ends: NDArray[np.int64], stride: int) -> NDArray[np.int64]:
    """The first run of the component of each run, of runs from `starts` to `ends` in rows of `stride`."""
    low = np.searchsorted(ends, starts - stride)  # runs of the row above that touch each run
    high = np.searchsorted(starts, ends - stride, side="right")
    number = np.maximum(high - low, 0)
    run = np.repeat(np.arange(len(starts)), number)
    above = np.arange(len(run)) - np.repeat(np.cumsum(number) - number, number) + np.repeat(low, number)
    component = np.arange(len(starts))
    while True:
        lowest = np.minimum(component[run], component[above])
        joined = component.copy()
        for other in (run, above):
            np.minimum.at(joined, component[other], lowest)
            np.minimum.at(joined, other, lowest)
        joined = joined[joined]
        if np.array_equal(joined, component):
            return component
        component = joined
