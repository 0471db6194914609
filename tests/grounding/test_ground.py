"""Grounding as a user meets it: photo and caption in, masks of the photo's size in forms that others read."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from pycocotools.coco import COCO
from support.benchmark import write_data
from support.models import bert_folder, small_ppmn

import ppmn
from ppmn.cli import main
from ppmn.data.panoptic import read_ids
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import Predictor
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.render import colour
from ppmn.grounding.result import Grounding, PhrasePrediction
from ppmn.phrases.rules import find_phrases, parse_brackets

CAPTION = "In this image there are two dogs on the green grass, and a red ball under the blue sky."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained model, saved as a user would have one."""
    root = tmp_path_factory.mktemp("model")
    small_ppmn(bert_folder(root / "bert")).save_pretrained(root / "model")
    return root / "model"


@pytest.fixture(scope="module")
def grounder(folder: Path) -> Grounder:
    return ppmn.load(folder)


def picture(width: int = 90, height: int = 60) -> Image.Image:
    image = Image.new("RGB", (width, height), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, height // 2, width, height), fill="forestgreen")
    draw.ellipse((width // 3, height // 3, 2 * width // 3, 2 * height // 3), fill="firebrick")
    return image


def drawn(caption: str = CAPTION, width: int = 90, height: int = 60, threshold: float = 0.5) -> Grounding:
    """A grounding whose maps are drawn, so that what must come out is known."""
    frame = MapGeometry(height, width, (8, 12), (7.5, 11.25))
    caption, marked = parse_brackets(caption)
    found = [p for p in find_phrases(caption, marked) if not p.empty]
    y, x = np.mgrid[:8, :12]
    maps = [
        np.exp(-((x - 2 - 2 * n) ** 2 + (y - 3) ** 2) / (4 + n)).astype(np.float32)
        for n, _ in enumerate(found)
    ]
    answers = tuple(PhrasePrediction(p, m, frame, threshold) for p, m in zip(found, maps, strict=True))
    return Grounding(picture(width, height), caption, answers, threshold, photo_name="photo.png")


def test_phrases_get_masks_of_the_photo_s_size(grounder: Grounder) -> None:
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


def test_an_empty_mask_has_no_box_and_score_nought(grounder: Grounder) -> None:
    found = grounder.ground(picture(), CAPTION, threshold=1.0)
    assert [(p.area, p.score, p.box) for p in found] == [(0, 0.0, None)] * 4
    assert found.to_coco()["annotations"][0]["bbox"] == [0, 0, 0, 0]
    assert len(found.to_supervision()) == 0
    assert not found.panoptic().any() and found.overlay().size == (90, 60)


@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    part=st.tuples(st.floats(0.2, 1), st.floats(0.2, 1)),
    threshold=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_map_is_brought_to_the_photo_s_pixels_in_one_bilinear_step(
    size: tuple[int, int],
    grid: tuple[int, int],
    part: tuple[float, float],
    threshold: float,
    seed: int,
) -> None:
    height, width = size
    covered = (grid[0] * part[0], grid[1] * part[1])
    frame = MapGeometry(height, width, grid, covered)
    response = np.random.default_rng(seed).random(grid, np.float32)
    # grid_sample wants -1..1 over the whole grid; of it the photo takes the covered part
    y = torch.arange(height).add(0.5).div(height).mul(2 * part[0]).sub(1)
    x = torch.arange(width).add(0.5).div(width).mul(2 * part[1]).sub(1)
    at = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1)[None]
    wanted = fn.grid_sample(
        torch.from_numpy(response)[None, None], at, padding_mode="border", align_corners=False
    )[0, 0].numpy()
    whole = frame.response(response)
    np.testing.assert_allclose(whole, wanted, atol=2e-5)
    mask = frame.mask(response, threshold)
    np.testing.assert_array_equal(mask, whole > threshold)
    assert frame.measure(response, threshold).area == mask.sum()


def test_a_photo_without_padding_is_plain_interpolation() -> None:
    response = np.random.default_rng(0).random((6, 8), np.float32)
    wanted = fn.interpolate(torch.from_numpy(response)[None, None], (48, 64), mode="bilinear")[0, 0]
    np.testing.assert_allclose(MapGeometry(48, 64, (6, 8), (6, 8)).response(response), wanted, atol=1e-6)


def test_padding_does_not_move_a_mask(grounder: Grounder) -> None:
    """A bright spot stays under its pixel whatever part of the grid is padding."""
    for width in (64, 65, 90, 96, 97, 128):
        photo = picture(width, 64)
        frame = grounder.encode(photo).encoded.frames[0]
        stride, scale = grounder.model.image_encoder.stride, frame.width / (frame.content_size[1] * 8)
        for cell in range(int(frame.content_size[1]) - 1):
            response = np.zeros(frame.map_size, np.float32)
            response[:, cell] = 1
            (x, _, w, _) = frame.measure(response, 0.5).box or (0, 0, 0, 0)
            assert x + w / 2 == pytest.approx((cell + 0.5) * stride * scale, abs=1)


def test_one_look_serves_many_captions_and_equals_grounding_at_once(grounder: Grounder) -> None:
    look = grounder.encode(picture())
    for caption in (CAPTION, "a cat", "[the sky] and [a tree]"):
        alone = grounder.ground(picture(), caption)
        for a, b in zip(look.ground(caption), alone, strict=True):
            np.testing.assert_array_equal(a.map, b.map)


@pytest.mark.parametrize("padding", [False, True])
def test_lists_are_batched_and_equal_single_calls(tmp_path: Path, padding: bool) -> None:
    grounder = Grounder(small_ppmn(bert_folder(tmp_path), count_padding=padding))
    photos = [picture(*size) for size in ((90, 60), (40, 90), (33, 33), (200, 40), (64, 64))]
    captions = [CAPTION, "a cat", "[dogs] [grass] [sky]", "two dogs, a red ball", CAPTION]
    together = grounder.ground(photos, captions, rounds=True)
    looks = grounder.encode(photos)
    for photo, caption, found, look in zip(photos, captions, together, looks, strict=True):
        single = grounder.ground(photo, caption, rounds=True)
        assert [p.text for p in found] == [p.text for p in single]
        for a, b, c in zip(found, single, look.ground(caption), strict=True):
            np.testing.assert_allclose(a.map, b.map, atol=1e-4)
            np.testing.assert_allclose(c.map, b.map, atol=1e-4)
            assert a.mask.shape == (photo.height, photo.width)
        for many, one in zip(found.rounds, single.rounds, strict=True):
            assert many.maps.shape == one.maps.shape
            assert [len(p) for p in many.pixels] == [len(p) for p in one.pixels]


def test_lists_must_fit(grounder: Grounder) -> None:
    with pytest.raises(InputError, match="2 photos"):
        grounder.ground([picture(), picture()], ["a dog"])


def test_brackets_spans_and_empty_phrases(grounder: Grounder) -> None:
    look = grounder.encode(picture())
    found = look.ground("[two dogs] on [the grass]")
    assert found.caption == "two dogs on the grass" and [p.text for p in found] == ["two dogs", "the grass"]
    assert [p.span for p in look.ground("two dogs on grass", spans=[(4, 8)])] == [(4, 8)]
    assert look.ground(CAPTION, empties=True)[0].text == "image"


def test_rounds_are_kept_on_request(grounder: Grounder) -> None:
    found = grounder.ground(picture(), CAPTION, rounds=True)
    L, S = grounder.model.config.rounds, grounder.model.config.pixels
    assert len(found.rounds) == L + 1
    np.testing.assert_array_equal(found.rounds[-1].maps, np.stack([p.map for p in found]))
    for step in found.rounds[:-1]:
        for points, phrase in zip(step.pixels, found, strict=True):
            words = len(phrase.text.split())
            assert 0 < len(points) <= S * words
            assert (points >= 0).all() and (points < (90, 60)).all()
    assert found.rounds[-1].pixels == ()


def test_rounds_without_pixels_are_kept_too(tmp_path: Path) -> None:
    grounder = Grounder(small_ppmn(bert_folder(tmp_path), pixels=0))
    found = grounder.ground(picture(), CAPTION, rounds=True)
    assert [step.pixels for step in found.rounds] == [()] * (grounder.model.config.rounds + 1)
    assert found.figure().width > 4 * 90
    with pytest.raises(InputError, match="rounds=True"):
        grounder.ground(picture(), CAPTION).figure()


def test_coco_is_read_back_by_pycocotools_and_supervision(tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision")
    found = drawn()
    (file,) = found.save(tmp_path, ["json"])
    coco = COCO(file)
    masks = [coco.annToMask(a).astype(bool) for a in coco.loadAnns(coco.getAnnIds())]
    assert len(masks) == len(found) == 4 and all(p.area for p in found)
    for mask, phrase in zip(masks, found, strict=True):
        np.testing.assert_array_equal(mask, phrase.mask)
    picture().save(tmp_path / "photo.png")
    data = supervision.DetectionDataset.from_coco(str(tmp_path), str(file), force_masks=True)
    ((_, _, read),) = data
    direct = found.to_supervision()
    np.testing.assert_array_equal(read.mask, np.stack([p.mask for p in found]))
    np.testing.assert_array_equal(direct.mask, read.mask)
    np.testing.assert_allclose(direct.xyxy, read.xyxy)
    assert list(direct.data["class_name"]) == [p.text for p in found]
    assert [data.classes[i] for i in read.class_id] == [p.text for p in found]


def test_panoptic_gives_each_pixel_to_its_best_phrase(tmp_path: Path) -> None:
    found = drawn()
    responses = np.stack([np.where(p.mask, p.response, 0) for p in found])
    wanted = np.where(responses.any(0), responses.argmax(0) + 1, 0)
    np.testing.assert_array_equal(found.panoptic(), wanted)
    png, table = found.save(tmp_path, ["panoptic"])
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


def test_overlay_changes_masks_only_and_masks_are_one_bit(tmp_path: Path) -> None:
    found = drawn("a dog", width=200, height=160)
    picture_, mask = np.asarray(found.overlay()), found[0].mask
    original = np.asarray(found.photo)
    changed = (picture_ != original).any(-1)
    assert changed[mask].mean() > 0.9
    far = np.ones_like(mask)
    x, y, w, h = found[0].box or (0, 0, 0, 0)
    far[max(0, y - 30) : y + h + 30, max(0, x - 60) : x + w + 60] = False
    assert not changed[far].any()
    assert (picture_[mask] == colour(0)).all(-1).any()  # the outline
    _, file = found.save(tmp_path, ["png"])
    with Image.open(file) as read:
        assert read.mode == "1" and file.name == "001_dog.png"
        np.testing.assert_array_equal(np.asarray(read), mask)
    assert max(found.overlay(side=50).size) == 50


def test_no_caption_becomes_markup(tmp_path: Path) -> None:
    caption = "a dog</script><script>alert(1)</script> <img src=x onerror=alert(1)> & __DATA__ a cat"
    page = drawn(caption).page()
    assert page.count("<script") == 2 and "<img src" not in page and "__TITLE__" not in page
    data = page.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(data)["caption"] == caption
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere


def test_grounder_is_a_predictor(grounder: Grounder) -> None:
    predictor: Predictor = grounder
    spans = [(0, 8), (12, 17)]
    caption, photo = "two dogs on grass", picture(91, 61)
    full = list(predictor.predict(photo, caption, spans, "full"))
    found = grounder.ground(photo, caption, spans=spans)
    for chances, phrase in zip(full, found, strict=True):
        np.testing.assert_array_equal(chances, phrase.response)
    released = list(predictor.predict(photo, caption, spans, "ppmn2022"))
    rows, columns = found[0].frame.map_size
    assert [r.shape for r in released] == [(2 * rows, 2 * columns)] * 2
    assert list(predictor.predict(photo, caption, [], "full")) == []
    assert predictor.sides == (64, 128) and predictor.threshold == 0.5 and predictor.name == "model"


def test_a_saved_model_is_evaluated(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_data(tmp_path / "data")
    out = tmp_path / "run.json"
    assert main(["evaluate", "--model", str(folder), "--data", f"{root}:val2017", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["phrases"]["overall"] == 3
    released = ["evaluate", "--model", str(folder), "--data", str(root), "--protocol", "ppmn2022"]
    assert main(released) == 2 and "800/1333" in capsys.readouterr().err


def test_the_shipped_model_is_asked_for_by_name_and_missed_in_a_sentence() -> None:
    with pytest.raises(InputError, match="neither a model folder nor a shipped model"):
        ppmn.load("none-such")
    with pytest.raises(AttributeError):
        ppmn.nothing  # noqa: B018


def test_the_command_grounds_one_photo(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photo, out = tmp_path / "photo.png", tmp_path / "out"
    picture().save(photo)
    command = ["ground", str(photo), CAPTION, "--model", str(folder)]
    assert main([*command, "-o", str(out), "--format", "json,png,panoptic,html,rounds"]) == 0
    text = capsys.readouterr().out
    assert "[two dogs]" in text and "not looked for: image" in text and str(out / "page.html") in text
    names = {f.name for f in out.iterdir()}
    assert names == {
        "grounding.json",
        "overlay.png",
        "masks",
        "panoptic.png",
        "panoptic.json",
        "page.html",
        "rounds.png",
    }
    assert len(list((out / "masks").iterdir())) == 4
    monkeypatch.setattr(sys, "stdin", io.StringIO("[a dog]\n"))
    assert main(["ground", str(photo), "-", "--model", str(folder), "-o", str(out / "b"), "--boxes"]) == 0
    boxes = json.loads((out / "b" / "grounding.json").read_text())["annotations"]
    assert [set(b) & {"segmentation", "bbox"} for b in boxes] == [{"bbox"}]


def test_the_command_says_what_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "photo.png"
    picture().save(photo)
    wrong = [
        (["ground", str(tmp_path / "none.jpg"), "a dog"], "is not a file"),
        (["ground", str(photo)], "there is no caption"),
        (["ground", str(photo), "and of the"], "names nothing to look for"),
        (["ground", str(photo), "this image"], "names nothing to look for, only image"),
        (["ground", str(photo), "a dog", "--threshold", "2"], "threshold is 2.0"),
        (["ground", str(photo), "a dog", "--format", "gif"], "the format gif is not known"),
        (["ground", str(tmp_path), "a dog"], "-o DIR"),
        (["ground", str(photo), "a dog", "-o", str(photo)], "cannot be made"),
        (["ground", str(photo), "a dog", "--device", "cuda:9"], "the device cuda:9"),
    ]
    for command, said in wrong:
        assert main([*command, "--model", str(folder)]) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.strip().splitlines()) == 1


def test_many_photos_are_restartable_and_a_bad_one_is_not_fatal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    picture().save(photos / "a.png")
    picture(40, 50).save(photos / "b.jpg")
    (photos / "c.png").write_bytes(b"no photo")
    rows = [{"photo": n, "caption": CAPTION} for n in ("a.png", "c.png", "b.jpg", "missing.png")]
    listed = photos / "list.jsonl"
    listed.write_text("\n".join([*map(json.dumps, rows), "not json", ""]))
    command = ["ground", str(listed), "-o", str(out), "--model", str(folder), "--format", "json"]
    assert main(command) == 1
    said = capsys.readouterr()
    assert "2 grounded, 3 failed" in said.out and "c.png is not a photo" in said.err and "line 5" in said.err
    assert sorted(f.name for f in out.iterdir() if f.is_dir()) == ["000001_a", "000003_b"]
    before = (out / "000001_a" / "grounding.json").stat().st_mtime_ns
    picture().save(photos / "c.png")
    (out / "results.jsonl").open("a").write('{"key": "cut sho')
    assert main(command) == 1
    assert "2 of 5 are there from before" in capsys.readouterr().out
    assert (out / "000001_a" / "grounding.json").stat().st_mtime_ns == before
    assert (out / "000002_c" / "grounding.json").is_file()
    assert main([*command, "--threshold", "0.3"]) == 1  # another question, another answer
    assert "3 grounded" in capsys.readouterr().out


def test_a_folder_takes_one_caption_or_the_text_beside_each_photo(folder: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    picture().save(photos / "a.png")
    picture().save(photos / "b.png")
    (photos / "a.txt").write_text("two dogs\n")
    common = ["--model", str(folder), "--format", "json"]
    assert main(["ground", str(photos), "a cat", "-o", str(tmp_path / "one"), *common]) == 0
    assert main(["ground", str(photos), "-o", str(tmp_path / "each"), *common]) == 1
    assert [f.name for f in sorted((tmp_path / "each").iterdir())] == ["000001_a", "results.jsonl"]
