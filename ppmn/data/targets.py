"""Ground truth at the resolution it is needed at, made directly from the map of segment ids.

`rows` says which segments belong to each row of the result: one tuple of ids per phrase or word piece.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ppmn.data.panoptic import segment_positions
from ppmn.types import Mask, SegmentIds, Size

Rows = Sequence[Sequence[int]]


def full_masks(ids: SegmentIds, rows: Rows) -> Mask:
    """Masks as annotated, in the pixels of the image: (N, H0, W0)."""
    labels, members = _labels(ids, rows)
    masks: Mask = members.take(labels, axis=1)
    return masks


def targets_ppmn2022(ids: SegmentIds, rows: Rows, resized: Size, padded: Size) -> Mask:
    """The masks that the authors' code trains on and measures against: (N, H/4, W/4), padded size (H, W).

    It resizes masks bilinearly to the network's input, pads with zeros, resizes to a quarter and keeps
    what is above zero; so a cell is set if any pixel with a weight in it is. Those pixels are gathered
    here, one bit per row, without the masks in between.
    """
    labels, members = _labels(ids, rows)
    ys = _taps(ids.shape[0], resized[0], padded[0])  # (H/4, 4)
    xs = _taps(ids.shape[1], resized[1], padded[1])  # (W/4, 4)
    targets = np.zeros((len(rows), len(ys), len(xs)), bool)
    for first in range(0, len(rows), 64):
        group = members[first : first + 64]
        bits = np.left_shift(np.uint64(1), np.arange(len(group), dtype=np.uint64))
        words = (group * bits[:, None]).sum(0, dtype=np.uint64)  # label -> its rows
        pixels = np.pad(words[labels], ((0, 1), (0, 1)))  # a zero past the border, for taps in the padding
        cells = np.bitwise_or.reduce(pixels[ys], axis=1)  # (H/4, W0 + 1)
        cells = np.bitwise_or.reduce(cells[:, xs], axis=2)  # (H/4, W/4)
        targets[first : first + 64] = (cells & bits[:, None, None]) != 0
    return targets


def targets_area(
    ids: SegmentIds, rows: Rows, size: Size, ignore_ids: Collection[int] = ()
) -> tuple[Mask, Mask]:
    """Masks resized by area and thresholded at one half, (N, h, w), and which cells are valid, (h, w).

    Pixels whose id is in `ignore_ids` are left out of the average, and a cell that is mostly made of
    them is not valid.
    """
    labels, members = _labels(ids, [*rows, tuple(ignore_ids)])
    y_pixel, y_cell, y_length = _pieces(ids.shape[0], size[0])
    x_pixel, x_cell, x_length = _pieces(ids.shape[1], size[1])
    count = members.shape[1]
    places = (y_cell[:, None] * size[1] + x_cell) * count + labels[y_pixel[:, None], x_pixel]
    areas = np.bincount(
        places.ravel(), (y_length[:, None] * x_length).ravel(), minlength=size[0] * size[1] * count
    )
    cell_area = float(ids.shape[0] * ids.shape[1])  # in the units of _pieces
    covered = (areas.reshape(-1, count) @ members.T.astype(np.float64)).T.reshape(-1, *size)
    valid_area = cell_area - covered[-1]
    masks = (2 * covered[:-1] >= valid_area) & (valid_area > 0)
    return masks, 2 * valid_area >= cell_area


def _labels(ids: SegmentIds, rows: Rows) -> tuple[NDArray[np.int32], Mask]:
    """Segments renumbered from 1, 0 for all others: (H0, W0); and which rows have which: (N, 1 + K)."""
    named = np.unique(np.array([s for row in rows for s in row], np.int32))
    members = np.zeros((len(rows), len(named) + 1), bool)
    for n, row in enumerate(rows):
        members[n, 1 + np.searchsorted(named, row)] = True
    return segment_positions(ids, named.tolist()), members


@lru_cache(maxsize=256)
def _taps(source: int, resized: int, padded: int) -> NDArray[np.intp]:
    """Which of `source` pixels each quarter-scale cell touches: (padded/4, 4), `source` where none."""
    import torch
    from torch.nn.functional import interpolate

    eye = torch.eye(source)[None, None]
    weights = interpolate(eye, (resized, source), mode="bilinear", align_corners=False)[0, 0].numpy()
    touched = weights > 0  # by the function itself: its rounding decides which weights are zero
    first = touched.argmax(1)
    last = source - 1 - touched[:, ::-1].argmax(1)
    pair = np.full((padded, 2), source)
    pair[:resized] = np.stack([first, last], 1)
    return pair.reshape(-1, 4, 2)[:, 1:3].reshape(-1, 4)  # scale 1/4 averages the middle two of four


@lru_cache(maxsize=256)
def _pieces(pixels: int, cells: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """A line cut at the borders of its pixels and cells: pixel, cell and length of each piece.

    Lengths are integers: one pixel is `cells` long and one cell `pixels`.
    """
    borders = np.union1d(np.arange(pixels + 1) * cells, np.arange(cells + 1) * pixels)
    return borders[:-1] // cells, borders[:-1] // pixels, np.diff(borders).astype(np.float64)
