"""Where a mask ends and which of its parts it keeps, where a model's `edge` and `peak` say so."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage.measure import label
from support.models import bert_folder, small_ppmn

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import apply_hysteresis, apply_relative_threshold


@given(
    st.tuples(st.integers(0, 3), st.integers(1, 14), st.integers(1, 14)),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0, width=16),
    st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_a_part_stays_where_it_comes_near_the_highest_response(
    shape: tuple[int, int, int], threshold: float, peak: float, seed: int
) -> None:
    maps = np.random.default_rng(seed).random(shape, np.float32)
    for before, after in zip(maps, apply_hysteresis(maps, threshold, peak), strict=True):
        parts = label(before > threshold, connectivity=2)
        left_out = np.zeros(parts.shape, bool)
        for part in range(1, parts.max() + 1):
            left_out |= (parts == part) & (before[parts == part].max() < np.float32(peak) * before.max())
        np.testing.assert_array_equal(after > threshold, (before > threshold) & ~left_out)
        np.testing.assert_array_equal(after[~left_out], before[~left_out])
        assert not left_out.any() or after[left_out].max() < 0.91 * threshold


@given(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)),
    st.floats(0.05, 0.95),
    st.floats(0.05, 0.95),
    st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_a_mask_ends_at_a_share_of_the_highest_response(
    shape: tuple[int, int, int], threshold: float, edge: float, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    maps = chance.random(shape, np.float32) * chance.random((shape[0], 1, 1), np.float32)
    for before, after in zip(maps, apply_relative_threshold(maps, threshold, edge), strict=True):
        if before.max() <= threshold:  # nothing is there: nothing appears
            np.testing.assert_array_equal(after, before)
            continue
        near = abs(before - edge * before.max()) < 1e-4  # rounding may decide
        np.testing.assert_array_equal((after > threshold)[~near], (before > edge * before.max())[~near])
        order = np.argsort(before, axis=None)
        assert (np.diff(after.ravel()[order]) >= 0).all()
        assert after.min() >= 0 and after.max() <= 1


def test_masks_follow_the_model_s_edge(tmp_path: Path) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"))
    photo = Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8))
    (raw,) = Grounder(model).ground(photo, "a dog")
    model.config = replace(model.config, threshold=float(np.quantile(raw.map, 0.3)), relative_threshold=0.98)
    grounder = Grounder(model)
    (own,) = grounder.ground(photo, "a dog")
    np.testing.assert_array_equal(own.map > own.threshold, raw.map > np.float32(0.98) * raw.map.max())
    (chances,) = grounder.response_maps(photo, "a dog", [own.span])
    np.testing.assert_array_equal(own.mask, chances > own.threshold)


def test_masks_and_predictions_follow_the_model_s_peak(tmp_path: Path) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"))
    noise = np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8)
    photo, caption = Image.fromarray(noise), "a dog"
    raw = Grounder(model).ground(photo, caption, keep_rounds=True)
    cut = float(np.quantile(raw[0].map, 0.85))  # several parts are over it
    model.config = replace(model.config, threshold=cut, hysteresis_peak=1.0)
    strict = Grounder(model).ground(photo, caption, keep_rounds=True)
    told = Grounder(model).response_maps(photo, caption, [phrase.span for phrase in strict])
    for before, after, chances in zip(raw, strict, told, strict=True):
        assert (
            label(before.map > cut, connectivity=2).max() > label(after.map > cut, connectivity=2).max() == 1
        )
        assert after.area < before.geometry.mask(before.map, cut).sum()
        np.testing.assert_array_equal(after.mask, chances > cut)
    np.testing.assert_array_equal(raw.rounds[-1].maps, strict.rounds[-1].maps)  # rounds are shown whole


def test_a_mask_cannot_end_where_nothing_does() -> None:
    for fields in (
        {"relative_threshold": 1.0},
        {"relative_threshold": 0.5, "threshold": 0.0},
        {"relative_threshold": 0.5, "threshold": 1.0},
    ):
        with pytest.raises(InputError, match="strictly between 0 and 1"):
            ModelConfig(**fields)  # type: ignore[arg-type]


def test_a_peak_is_a_share() -> None:
    with pytest.raises(InputError, match=r"peak is 1\.5"):
        ModelConfig(hysteresis_peak=1.5)


def test_maps_become_masks_without_torch() -> None:
    code = "import sys; import ppmn.grounding.maps; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
