"""Images are read once and copied only where they must change; ids and masks survive their encoding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from pycocotools import mask as coco_mask

from ppmn.data.panoptic import read_ids
from ppmn.errors import InputError
from ppmn.images import decode_rle, encode_rle, ids_to_rgb, read_image, rgb_to_ids

SIDES = st.integers(1, 40)


def test_upright_rgb_image_is_returned_as_it_is(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 30), "skyblue")
    assert read_image(image) is image
    image.save(tmp_path / "image.png")
    once = read_image(tmp_path / "image.png")
    assert read_image(once) is once


def test_other_images_are_converted() -> None:
    grey = Image.new("L", (40, 30), 7)
    assert read_image(grey).getpixel((0, 0)) == (7, 7, 7) and grey.mode == "L"
    turned = Image.new("RGB", (40, 30))
    turned.getexif()[0x0112] = 6  # a quarter turn
    assert read_image(turned).size == (30, 40) and turned.size == (40, 30)


def test_file_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_image = Image.open

    def counted(*args: Any, **options: Any) -> Image.Image:
        opened.append(args)
        return open_image(*args, **options)

    monkeypatch.setattr(Image, "open", counted)
    Image.new("RGB", (40, 30)).save(tmp_path / "image.png")
    read_image(read_image(read_image(tmp_path / "image.png")))
    assert len(opened) == 1


@pytest.mark.parametrize("images", [[], [Image.new("RGB", (4, 4))], ("a.jpg", "b.jpg")])
def test_several_images_are_refused(images: object) -> None:
    with pytest.raises(InputError, match="encode_batch"):
        read_image(images)  # type: ignore[arg-type]


@given(arrays(bool, st.tuples(SIDES, SIDES)))
@settings(max_examples=60, deadline=None)
def test_rle_round_trip(mask: np.ndarray) -> None:
    rle = encode_rle(mask)
    assert rle["size"] == list(mask.shape) and isinstance(rle["counts"], str)
    np.testing.assert_array_equal(decode_rle(rle), mask)
    assert coco_mask.area(rle) == mask.sum()


@given(arrays(np.int32, st.tuples(SIDES, SIDES), elements=st.integers(0, 256**3 - 1)))
@settings(max_examples=60, deadline=None)
def test_segment_ids_round_trip(ids: np.ndarray) -> None:
    rgb = ids_to_rgb(ids)
    assert rgb.shape == (*ids.shape, 3) and rgb.dtype == np.uint8
    np.testing.assert_array_equal(rgb_to_ids(rgb), ids)


def test_segment_ids_are_read_from_a_png(tmp_path: Path) -> None:
    ids = np.array([[0, 1, 255], [256, 65_536, 16_777_215]], np.int32)
    Image.fromarray(ids_to_rgb(ids)).save(tmp_path / "ids.png")
    np.testing.assert_array_equal(read_ids(tmp_path / "ids.png"), ids)
