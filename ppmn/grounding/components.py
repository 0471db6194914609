"""Connected components of masks, from their horizontal runs of pixels; a shared corner connects."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppmn.types import Mask

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """The horizontal runs of masks (P, H, W), row by row; places are flat.

    Attributes:
        starts: The first pixel of each run, (n,).
        lengths: How many pixels each has, (n,).
        component: Which component each belongs to, (n,), from 0 on in the order of first pixels.
        first: The first pixel of each component, (components,).
    """

    starts: Numbers
    lengths: Numbers
    component: Numbers
    first: Numbers


def find_runs(masks: Mask) -> Runs:
    """The runs of masks (P, H, W); components end with their mask."""
    count, height, width = masks.shape
    rows, stride = height + 1, width + 1  # an empty row and column come first
    pixels = np.zeros(count * rows * stride + 1, bool)
    pixels[:-1].reshape(count, rows, stride)[:, 1:, 1:] = masks
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    starts, ends = changes[::2], changes[1::2]
    root = _connect(starts, ends, stride)
    is_root = root == np.arange(len(root))
    row, column = np.divmod(starts, stride)
    own = (row - row // rows - 1) * width + column - 1  # without the empty rows and columns
    return Runs(own, ends - starts, (np.cumsum(is_root) - 1)[root], own[is_root])


def label_components(mask: Mask) -> tuple[Numbers, Numbers]:
    """Number the components of a mask (H, W).

    Returns:
        Labels (H, W), 0 outside of the mask and from 1 on in the order of first pixels; and the flat index of
        the first pixel of each component, row by row.
    """
    runs = find_runs(mask[None])
    labels = np.zeros(mask.shape, np.int64)
    labels[mask] = np.repeat(runs.component + 1, runs.lengths)
    return labels, runs.first


def count_components(masks: Mask) -> Numbers:
    """How many components each of several masks (P, H, W) has, (P,)."""
    count, height, width = masks.shape
    return np.bincount(find_runs(masks).first // max(height * width, 1), minlength=count)


def _connect(starts: Numbers, ends: Numbers, stride: int) -> Numbers:
    """The first run of the component of each run, of runs from `starts` to `ends` in rows of `stride`."""
    low = np.searchsorted(ends, starts - stride)  # runs of the row above that touch each run
    high = np.searchsorted(starts, ends - stride, side="right")
    number = np.maximum(high - low, 0)
    run = np.repeat(np.arange(len(starts)), number)
    above = np.arange(len(run)) - np.repeat(np.cumsum(number) - number, number) + np.repeat(low, number)
    component = np.arange(len(starts))
    component[run] = above  # one of them; where there are others, components are joined below
    while True:
        component = _roots(component)
        one, other = component[run], component[above]
        apart = one != other
        if not apart.any():
            return component
        np.minimum.at(component, np.maximum(one, other)[apart], np.minimum(one, other)[apart])


def _roots(parent: Numbers) -> Numbers:
    """Where each number ends that follows its parent until that is its own."""
    while True:
        further = parent[parent]
        if np.array_equal(further, parent):
            return parent
        parent = further
