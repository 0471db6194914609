"""Polygons of masks: filled, they are the masks again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask
from scipy import ndimage
from support.polygons import filled, iou

from ppmn.grounding.polygons import Polygon, mask_polygons
from ppmn.types import Mask


@given(st.integers(1, 14), st.integers(1, 14), st.floats(0.2, 0.9), st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_any_small_mask_is_kept_exactly(height: int, width: int, share: float, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < share
    polygons = mask_polygons(mask)
    np.testing.assert_array_equal(filled(polygons, mask.shape), mask)
    assert len(polygons) == ndimage.label(mask)[1]
    areas = [np.bincount(ndimage.label(mask)[0].ravel())[1:]]
    assert sorted(np.ravel(areas).tolist()) == sorted(shoelace(p) for p in polygons)


def shoelace(polygon: Polygon) -> float:
    (x, y), (u, v) = polygon.T, np.roll(polygon, -1, 0).T
    return float(x @ v - u @ y) / 2


def smooth(seed: int, size: int, share: float) -> Mask:
    """Blobs with holes, like those of a network."""
    values = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(size, size)), size / 16)
    return np.asarray(values > np.quantile(values, 1 - share))


@pytest.mark.parametrize("size", [40, 160, 640])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_masks_above_500_pixels_keep_an_iou_of_95_percent(size: int, share: float) -> None:
    for seed in range(3):
        mask = smooth(seed, size, max(share, 0.35) if size == 40 else share)
        assert mask.sum() > 500
        polygons = mask_polygons(mask)
        assert iou(filled(polygons, mask.shape), mask) >= 0.95
        rles = coco_mask.frPyObjects([p.ravel().tolist() for p in polygons], size, size)
        assert iou(coco_mask.decode(coco_mask.merge(rles)).astype(bool), mask) >= 0.95


def test_thin_and_spotted_masks_keep_an_iou_of_95_percent() -> None:
    y, x = np.mgrid[:200, :200]
    radius = np.hypot(x - 100, y - 100)
    thin = (radius > 90) & (radius < 92)
    nested = (radius < 95) & ~((radius > 60) & (radius < 80)) & ~(radius < 20)
    spotted = (radius < 90) & ~((x % 10 == 0) & (y % 10 == 0))
    for mask in (thin, nested, spotted, np.ones((30, 20), bool), (x + y) % 7 > 0):
        assert iou(filled(mask_polygons(mask), mask.shape), mask) >= 0.95


def test_a_ring_is_one_polygon_whose_hole_stays_open() -> None:
    mask = np.ones((5, 5), bool)
    mask[2, 2] = False
    (polygon,) = mask_polygons(mask)
    assert shoelace(polygon) == 24 and not filled([polygon], mask.shape)[2, 2]


def test_large_parts_have_few_points() -> None:
    y, x = np.mgrid[:600, :600]
    disc = np.hypot(x - 300, y - 300) < 250
    (exact,), (simple,) = mask_polygons(disc, tolerance=0), mask_polygons(disc)
    assert len(simple) < len(exact) / 8
    assert iou(filled([simple], disc.shape), disc) > 0.99


def test_empty_mask_has_no_polygon() -> None:
    assert mask_polygons(np.zeros((4, 6), bool)) == []
    (whole,) = mask_polygons(np.ones((4, 6), bool))
    assert sorted(map(tuple, whole.tolist())) == [(0, 0), (0, 4), (6, 0), (6, 4)]
