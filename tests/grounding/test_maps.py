"""Relative threshold, hysteresis, and the 8-bit encoding of maps."""

import base64
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
from ppmn.grounding.maps import apply_hysteresis, apply_relative_threshold, encode_map


@given(
    st.tuples(st.integers(0, 3), st.integers(1, 14), st.integers(1, 14)),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0, width=16),
    st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_hysteresis_keeps_components_with_a_peak(
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
def test_relative_threshold_is_a_fraction_of_the_maximum(
    shape: tuple[int, int, int], threshold: float, fraction: float, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    maps = chance.random(shape, np.float32) * chance.random((shape[0], 1, 1), np.float32)
    for before, after in zip(maps, apply_relative_threshold(maps, threshold, fraction), strict=True):
        if before.max() <= threshold:  # absent phrases stay absent
            np.testing.assert_array_equal(after, before)
            continue
        near = abs(before - fraction * before.max()) < 1e-4  # rounding may decide
        np.testing.assert_array_equal((after > threshold)[~near], (before > fraction * before.max())[~near])
        order = np.argsort(before, axis=None)
        assert (np.diff(after.ravel()[order]) >= 0).all()
        assert after.min() >= 0 and after.max() <= 1


def test_masks_use_the_relative_threshold_of_the_model(tmp_path: Path) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"))
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8))
    (raw,) = Grounder(model).ground(image, "a dog")
    model.config = replace(model.config, threshold=float(np.quantile(raw.map, 0.3)), relative_threshold=0.98)
    grounder = Grounder(model)
    (own,) = grounder.ground(image, "a dog")
    np.testing.assert_array_equal(own.map > own.threshold, raw.map > np.float32(0.98) * raw.map.max())
    (response,) = grounder.response_maps(image, "a dog", [own.span])
    np.testing.assert_array_equal(own.mask, response > own.threshold)


def test_masks_use_the_hysteresis_of_the_model(tmp_path: Path) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"))
    noise = np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8)
    image, caption = Image.fromarray(noise), "a dog"
    raw = Grounder(model).ground(image, caption, keep_rounds=True)
    cut = float(np.quantile(raw[0].map, 0.85))  # several components exceed it
    model.config = replace(model.config, threshold=cut, hysteresis_peak=1.0)
    strict = Grounder(model).ground(image, caption, keep_rounds=True)
    responses = Grounder(model).response_maps(image, caption, [phrase.span for phrase in strict])
    for before, after, response in zip(raw, strict, responses, strict=True):
        assert (
            label(before.map > cut, connectivity=2).max() > label(after.map > cut, connectivity=2).max() == 1
        )
        assert after.area < before.geometry.mask(before.map, cut).sum()
        np.testing.assert_array_equal(after.mask, response > cut)
    # rounds are not post-processed
    np.testing.assert_array_equal(raw.rounds[-1].maps, strict.rounds[-1].maps)


def test_relative_threshold_out_of_range_is_refused() -> None:
    for fields in (
        {"relative_threshold": 1.0},
        {"relative_threshold": 0.5, "threshold": 0.0},
        {"relative_threshold": 0.5, "threshold": 1.0},
    ):
        with pytest.raises(InputError, match="strictly between 0 and 1"):
            ModelConfig(**fields)  # type: ignore[arg-type]


def test_hysteresis_peak_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"peak is 1\.5"):
        ModelConfig(hysteresis_peak=1.5)


def test_maps_do_not_import_torch() -> None:
    code = "import sys; import ppmn.grounding.maps; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.integers(0, 99), st.floats(0.001, 1))
@settings(max_examples=20, deadline=None)
def test_encoded_map_is_within_half_a_step(seed: int, contrast: float) -> None:
    response = (0.3 + 0.7 * contrast * np.random.default_rng(seed).random((5, 7))).astype(np.float32)
    low, high, data = encode_map(response).values()
    decoded = low + (high - low) * np.frombuffer(base64.b64decode(data), np.uint8).reshape(5, 7) / 255
    assert abs(decoded - response).max() <= (high - low) / 255 * 0.51
    flat = np.full((5, 7), 0.5, np.float32)
    assert encode_map(flat) == {"low": 0.5, "high": 0.5, "data": base64.b64encode(bytes(35)).decode()}
