"""Grounding: image and caption in, masks of the image's size out, in formats that other tools read."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO
from support.benchmark import write_data
from support.grounding import CAPTION, drawn, picture
from support.models import bert_folder, small_ppmn

import ppmn
from ppmn.cli import main
from ppmn.data.panoptic import read_ids
from ppmn.errors import InputError
from ppmn.grounding.coco import panoptic_ids
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.render import color, paint_masks, rounds_figure
from ppmn.model.folder import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained model, saved as a user would have one."""
    root = tmp_path_factory.mktemp("model")
    save_model(small_ppmn(bert_folder(root / "bert")), root / "model")
    return root / "model"


@pytest.fixture(scope="module")
def grounder(folder: Path) -> Grounder:
    return ppmn.load(folder)


def test_masks_have_the_size_of_the_image(grounder: Grounder) -> None:
    found = grounder.ground(picture(), CAPTION)
    assert [p.text for p in found] == ["two dogs", "green grass", "red ball", "blue sky"]
    assert [p.text for p in found.skipped] == ["image"]
    for phrase in found:
        mask, response = phrase.mask, phrase.response
        assert mask.shape == response.shape == (60, 90) and mask.dtype == bool
        assert CAPTION[slice(*phrase.span)] == phrase.text
        np.testing.assert_array_equal(mask, response > found.threshold)
        assert phrase.area == mask.sum()
        assert phrase.score == pytest.approx(response[mask].mean() if mask.any() else 0, abs=1e-6)
        if phrase.box is not None:
            x, y, w, h = phrase.box
            inside = mask[y : y + h, x : x + w]
            assert inside.sum() == mask.sum()
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()


def test_empty_mask_has_no_box_and_score_zero(grounder: Grounder) -> None:
    found = grounder.ground(picture(), CAPTION, threshold=1.0)
    assert [(p.area, p.score, p.box) for p in found] == [(0, 0.0, None)] * 4
    assert ppmn.to_coco(found)["annotations"][0]["bbox"] == [0, 0, 0, 0]
    assert len(ppmn.to_supervision(found)) == 0
    assert not panoptic_ids(found).any() and ppmn.overlay(found).size == (90, 60)


@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    map_size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    part=st.tuples(st.floats(0.2, 1), st.floats(0.2, 1)),
    threshold=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_upsampling_is_bilinear(
    size: tuple[int, int],
    map_size: tuple[int, int],
    part: tuple[float, float],
    threshold: float,
    seed: int,
) -> None:
    height, width = size
    content_size = (map_size[0] * part[0], map_size[1] * part[1])
    geometry = MapGeometry(height, width, map_size, content_size)
    response = np.random.default_rng(seed).random(map_size, np.float32)
    # grid_sample takes -1..1 over the whole map, of which the image covers a part
    y = torch.arange(height).add(0.5).div(height).mul(2 * part[0]).sub(1)
    x = torch.arange(width).add(0.5).div(width).mul(2 * part[1]).sub(1)
    at = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1)[None]
    wanted = fn.grid_sample(
        torch.from_numpy(response)[None, None], at, padding_mode="border", align_corners=False
    )[0, 0].numpy()
    whole = geometry.response(response)
    np.testing.assert_allclose(whole, wanted, atol=2e-5)
    mask = geometry.mask(response, threshold)
    np.testing.assert_array_equal(mask, whole > threshold)
    assert geometry.stats(response, threshold).area == mask.sum()


def test_upsampling_without_padding_equals_interpolate() -> None:
    response = np.random.default_rng(0).random((6, 8), np.float32)
    wanted = fn.interpolate(torch.from_numpy(response)[None, None], (48, 64), mode="bilinear")[0, 0]
    np.testing.assert_allclose(MapGeometry(48, 64, (6, 8), (6, 8)).response(response), wanted, atol=1e-6)


def test_padding_does_not_move_a_mask(grounder: Grounder) -> None:
    """A map cell covers the same pixels however much of the map is padding."""
    for width in (64, 65, 90, 96, 97, 128):
        image = picture(width, 64)
        geometry = grounder.encode(image).geometry
        stride, scale = grounder.model.image_encoder.stride, geometry.width / (geometry.content_size[1] * 8)
        for cell in range(int(geometry.content_size[1]) - 1):
            response = np.zeros(geometry.map_size, np.float32)
            response[:, cell] = 1
            (x, _, w, _) = geometry.stats(response, 0.5).box or (0, 0, 0, 0)
            assert x + w / 2 == pytest.approx((cell + 0.5) * stride * scale, abs=1)


def test_encoded_image_serves_many_captions(grounder: Grounder) -> None:
    encoded = grounder.encode(picture())
    for caption in (CAPTION, "a cat", "[the sky] and [a tree]"):
        alone = grounder.ground(picture(), caption)
        for a, b in zip(encoded.ground(caption), alone, strict=True):
            np.testing.assert_array_equal(a.map, b.map)


@pytest.mark.parametrize("padding", [False, True])
def test_batch_equals_singles(tmp_path: Path, padding: bool) -> None:
    grounder = Grounder(small_ppmn(bert_folder(tmp_path), count_padding=padding))
    images = [picture(*size) for size in ((90, 60), (40, 90), (33, 33), (200, 40), (64, 64))]
    captions = [CAPTION, "a cat", "[dogs] [grass] [sky]", "two dogs, a red ball", CAPTION]
    together = grounder.ground_batch(images, captions, keep_rounds=True)
    encoded = grounder.encode_batch(images)
    for image, caption, found, own in zip(images, captions, together, encoded, strict=True):
        single = grounder.ground(image, caption, keep_rounds=True)
        assert [p.text for p in found] == [p.text for p in single]
        for a, b, c in zip(found, single, own.ground(caption), strict=True):
            np.testing.assert_allclose(a.map, b.map, atol=1e-4)
            np.testing.assert_allclose(c.map, b.map, atol=1e-4)
            assert a.mask.shape == (image.height, image.width)
        for many, one in zip(found.rounds, single.rounds, strict=True):
            assert many.maps.shape == one.maps.shape
            assert [len(p) for p in many.pixels] == [len(p) for p in one.pixels]


def test_batch_needs_one_caption_per_image(grounder: Grounder) -> None:
    images = [picture(), picture()]
    for captions in (["a dog"], "ab"):
        with pytest.raises(InputError, match="2 images need as many captions"):
            grounder.ground_batch(images, captions)
    with pytest.raises(InputError, match="encode_batch"):
        grounder.encode(images)  # type: ignore[arg-type]


def test_brackets_spans_and_abstract_phrases(grounder: Grounder) -> None:
    encoded = grounder.encode(picture())
    found = encoded.ground("[two dogs] on [the grass]")
    assert found.caption == "two dogs on the grass" and [p.text for p in found] == ["two dogs", "the grass"]
    assert [p.span for p in encoded.ground("two dogs on grass", spans=[(4, 8)])] == [(4, 8)]
    assert encoded.ground(CAPTION, all_phrases=True)[0].text == "image"


def test_rounds(grounder: Grounder) -> None:
    found = grounder.ground(picture(), CAPTION, keep_rounds=True)
    L, S = grounder.model.config.rounds, grounder.model.config.pixels
    assert len(found.rounds) == L + 1
    np.testing.assert_array_equal(found.rounds[-1].maps, np.stack([p.map for p in found]))
    for step in found.rounds[:-1]:
        for points, phrase in zip(step.pixels, found, strict=True):
            words = len(phrase.text.split())
            assert 0 < len(points) <= S * words
            assert (points >= 0).all() and (points < (90, 60)).all()
    assert found.rounds[-1].pixels == ()


def test_rounds_without_pixels(tmp_path: Path) -> None:
    grounder = Grounder(small_ppmn(bert_folder(tmp_path), pixels=0))
    found = grounder.ground(picture(), CAPTION, keep_rounds=True)
    assert [step.pixels for step in found.rounds] == [()] * (grounder.model.config.rounds + 1)
    assert rounds_figure(found).width > 4 * 90
    with pytest.raises(InputError, match="keep_rounds=True"):
        rounds_figure(grounder.ground(picture(), CAPTION))


def test_coco_is_read_by_pycocotools_and_supervision(tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision")
    found = drawn()
    (file,) = ppmn.save(found, tmp_path, formats=["json"])
    coco = COCO(file)
    masks = [coco.annToMask(a).astype(bool) for a in coco.loadAnns(coco.getAnnIds())]
    assert len(masks) == len(found) == 4 and all(p.area for p in found)
    for mask, phrase in zip(masks, found, strict=True):
        np.testing.assert_array_equal(mask, phrase.mask)
    picture().save(tmp_path / "photo.png")
    data = supervision.DetectionDataset.from_coco(str(tmp_path), str(file), force_masks=True)
    ((_, _, read),) = data
    direct = ppmn.to_supervision(found)
    np.testing.assert_array_equal(read.mask, np.stack([p.mask for p in found]))
    np.testing.assert_array_equal(direct.mask, read.mask)
    np.testing.assert_allclose(direct.xyxy, read.xyxy)
    assert list(direct.data["class_name"]) == [p.text for p in found]
    assert [data.classes[i] for i in read.class_id] == [p.text for p in found]


def test_panoptic_pixels_belong_to_the_best_phrase(tmp_path: Path) -> None:
    found = drawn()
    responses = np.stack([np.where(p.mask, p.response, 0) for p in found])
    wanted = np.where(responses.any(0), responses.argmax(0) + 1, 0)
    np.testing.assert_array_equal(panoptic_ids(found), wanted)
    png, table = ppmn.save(found, tmp_path, formats=["panoptic"])
    ids = read_ids(png)
    np.testing.assert_array_equal(ids, wanted)
    annotation = json.loads(table.read_text())["annotations"][0]
    assert {s["id"] for s in annotation["segments_info"]} == set(np.unique(ids)) - {0}
    for segment in annotation["segments_info"]:
        x, y, w, h = segment["bbox"]
        assert (
            segment["area"]
            == (ids == segment["id"]).sum()
            == (ids[y : y + h, x : x + w] == segment["id"]).sum()
        )


def test_overlay_and_mask_files(tmp_path: Path) -> None:
    found = drawn("a dog", width=200, height=160)
    picture_, mask = np.asarray(ppmn.overlay(found)), found[0].mask
    original = np.asarray(found.image)
    changed = (picture_ != original).any(-1)
    assert changed[mask].mean() > 0.9
    far = np.ones_like(mask)
    x, y, w, h = found[0].box or (0, 0, 0, 0)
    far[max(0, y - 30) : y + h + 30, max(0, x - 60) : x + w + 60] = False
    assert not changed[far].any()
    assert (picture_[mask] == color(0)).all(-1).any()  # the outline
    _, file = ppmn.save(found, tmp_path, formats=["png"])
    with Image.open(file) as read:
        assert read.mode == "1" and file.name == "001_dog.png"
        np.testing.assert_array_equal(np.asarray(read), mask)
    assert max(ppmn.overlay(found, max_side=50).size) == 50


def test_caption_is_escaped_in_html(tmp_path: Path) -> None:
    caption = "a dog</script><script>alert(1)</script> <img src=x onerror=alert(1)> & __DATA__ a cat"
    page = ppmn.to_html(drawn(caption))
    assert page.count("<script") == 2 and "<img src" not in page and "__TITLE__" not in page
    data = page.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(data)["caption"] == caption
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere


def test_response_and_quarter_maps(grounder: Grounder) -> None:
    spans = [(0, 8), (12, 17)]
    caption, image = "two dogs on grass", picture(91, 61)
    found = grounder.ground(image, caption, spans=spans)
    for response, phrase in zip(grounder.response_maps(image, caption, spans), found, strict=True):
        np.testing.assert_array_equal(response, phrase.response)
    rows, columns = found[0].geometry.map_size
    quarter = list(grounder.quarter_maps(image, caption, spans))
    assert [response.shape for response in quarter] == [(2 * rows, 2 * columns)] * 2
    assert list(grounder.response_maps(image, caption, [])) == []
    assert grounder.threshold == 0.5 and grounder.name == "model"


def test_saved_model_can_be_evaluated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_data(tmp_path / "data")
    out = tmp_path / "run.json"
    assert main(["evaluate", "--model", str(folder), "--data", f"{root}:val2017", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["phrases"]["overall"] == 3
    released = ["evaluate", "--model", str(folder), "--data", str(root), "--protocol", "ppmn2022"]
    assert main(released) == 2 and "800/1333" in capsys.readouterr().err


def test_unknown_model_and_unknown_name() -> None:
    with pytest.raises(InputError, match="neither a model folder nor a shipped model"):
        ppmn.load("none-such")
    with pytest.raises(AttributeError):
        ppmn.nothing  # noqa: B018


def test_paint_masks_resizes_masks_and_leaves_the_image() -> None:
    image = Image.new("RGB", (8, 4))
    painted = np.asarray(paint_masks(image, [np.array([[True, False]])], opacity=1, outline=False))
    assert (painted[:, :4] == color(0)).all() and not painted[:, 4:].any()
    assert not np.asarray(image).any()
