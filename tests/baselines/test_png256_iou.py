"""Protocol png256 against its definition in NumPy, and its refusal of anything but regions."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ppmn.baselines.png256_iou import png256_iou
from ppmn.errors import InputError


def resize_line(size: int, to: int) -> NDArray[np.float64]:
    """Weights (to, size) of a bilinear resize of one axis, without antialiasing."""
    weights = np.zeros((to, size))
    for i in range(to):
        place = max((i + 0.5) * size / to - 0.5, 0)
        low = min(int(place), size - 1)
        weights[i, low] += 1 - (place - low)
        weights[i, min(low + 1, size - 1)] += place - low
    return weights


def resize(x: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
    return resize_line(x.shape[0], height) @ x @ resize_line(x.shape[1], width).T


@pytest.mark.parametrize("size", [(300, 200), (97, 411), (256, 256)])
def test_equals_its_definition(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 4, (size[0] // 9 + 1, size[1] // 9 + 1))
    labels = np.kron(blocks, np.ones((9, 9), int))[: size[0], : size[1]]
    truth = np.roll(labels, 4, 1) % 2 == 1
    regions = [labels == 1, labels == 3]
    p = np.maximum(*(np.round(resize(region, 256, 256)) for region in regions))
    p, t = resize(p, *size), resize(resize(truth, 256, 256), *size)
    expected = (p * t).sum() / (p + t - p * t).sum()
    assert 0 < expected < 1
    assert png256_iou(regions, truth) == pytest.approx(expected, abs=1e-5)


def test_needs_the_regions_and_not_their_union() -> None:
    everything = np.ones((512, 512), bool)
    odd = np.arange(512) % 2 == 1  # at 256 x 256 each half of the columns is 0.5, and rounds to nothing
    regions = [everything & odd, everything & ~odd]
    assert png256_iou([everything], everything) == pytest.approx(1, abs=1e-6)
    assert png256_iou(regions, everything) == 0


def test_a_perfect_region_is_not_quite_one() -> None:
    mask = np.zeros((300, 400), bool)
    mask[100:150, 100:130] = True
    assert 0.9 < png256_iou([mask], mask) < 1
    assert png256_iou([], mask) == 0
    assert math.isnan(png256_iou([], np.zeros_like(mask)))


def test_other_predictions_are_refused() -> None:
    mask = np.ones((4, 5), bool)
    for prediction in (mask, [mask.T], [mask, mask[:2]]):
        with pytest.raises(InputError, match=r"only for a list of regions of the truth's size \(4, 5\)"):
            png256_iou(prediction, mask)
