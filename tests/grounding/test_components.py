"""Connected components equal scipy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import ndimage

from ppmn.grounding.components import count_components, label_components
from ppmn.types import Mask


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.booleans()))
def test_components_equal_those_of_scipy(mask: Mask) -> None:
    labels, first = label_components(mask)
    expected, count = ndimage.label(mask, np.ones((3, 3)))
    np.testing.assert_array_equal(labels, expected)
    assert len(first) == count
    for number, index in enumerate(first, 1):
        assert index == np.flatnonzero(labels == number)[0]


@given(arrays(bool, array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=9), elements=st.booleans()))
def test_components_of_several_masks_are_counted_apart(masks: Mask) -> None:
    expected = [ndimage.label(mask, np.ones((3, 3)))[1] if mask.size else 0 for mask in masks]
    assert count_components(masks).tolist() == expected


def test_random_masks_of_any_density() -> None:
    rng = np.random.default_rng(0)
    for density in (0.1, 0.4, 0.6, 0.9):
        mask = rng.random((120, 150)) < density
        labels, _ = label_components(mask)
        np.testing.assert_array_equal(labels, ndimage.label(mask, np.ones((3, 3)))[0])
