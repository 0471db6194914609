"""Presence, score and instances: what a network says becomes an answer."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from support.grounding import drawn
from support.models import small_ppmn

import ppmn
from ppmn.cli import main
from ppmn.config import CalibrationConfig, ModelConfig, PointingConfig
from ppmn.errors import InputError
from ppmn.grounding.answers import predict_phrases
from ppmn.grounding.calibration import (
    MAP_FEATURES,
    MapEvidence,
    expected_iou,
    map_features,
    presence_probability,
)
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.instances import connected_parts, find_instances, spread_cells
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.runtime import sigmoid
from ppmn.model.folder import load_model, save_model
from ppmn.phrases.rules import find_phrases
from ppmn.types import Span

CAPTION = "two dogs and a red ball"
POINTING = PointingConfig(channels=16, image_layers=1, phrase_layers=1, features=8)
GEOMETRY = MapGeometry(32, 48, (16, 24), (16, 24))
WEIGHTS = (0.3, *[0.1] * len(MAP_FEATURES))


def blobs(*centres: tuple[int, int], size: tuple[int, int] = (16, 24), width: float = 6) -> np.ndarray:
    y, x = np.mgrid[: size[0], : size[1]]
    return np.max([np.exp(-((y - a) ** 2 + (x - b) ** 2) / width) for a, b in centres], 0).astype(np.float32)


def evidence(presence: list[float] | None = None) -> MapEvidence:
    responses = np.stack([blobs((4, 4), (10, 18)), blobs((8, 12))])
    certainty = None if presence is None else np.array([0.9, 0.5])
    logits = None if presence is None else np.array(presence)
    return MapEvidence(responses, 0.9 * responses, logits, certainty)


def predict(config: ModelConfig, presence: list[float] | None = None, **options: bool):
    phrases = find_phrases(CAPTION)
    return predict_phrases(phrases, evidence(presence), GEOMETRY, config, threshold=0.5, **options)


def test_a_network_without_presence_answers_as_before() -> None:
    dogs, ball = predict(ModelConfig())
    assert dogs.presence is None and not dogs.absent and dogs.expected_iou is None
    assert dogs.score == dogs.mean_response > 0.5 and ball.area > 0


def test_a_phrase_that_is_probably_absent_has_no_mask_unless_it_is_kept() -> None:
    weights = tuple({"presence": 2.0}.get(name, 0.0) for name in MAP_FEATURES)
    calibration = CalibrationConfig(presence_weights=(-1.0, *weights), min_presence=0.4)
    config = ModelConfig(calibration=calibration)
    dogs, ball = predict(config, [1.0, 0.2])
    assert dogs.presence == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert ball.presence == pytest.approx(1 / (1 + np.exp(0.6))) and ball.absent and not dogs.absent
    assert not ball.mask.any() and ball.box is None and ball.score == 0 and ball.instances == ()
    kept = predict(config, [1.0, 0.2], keep_absent=True)[1]
    assert kept.absent and kept.area > 0 and kept.score == kept.mean_response
    assert ball.map is not None and np.array_equal(ball.map, kept.map)  # the response is not hidden


def test_a_foreign_caption_has_no_masks_unless_they_are_kept() -> None:
    for withheld in predict(ModelConfig(), [9.0, 9.0], foreign=True):
        assert withheld.foreign and not withheld.absent and withheld.presence is not None
        assert not withheld.mask.any() and withheld.box is None and withheld.score == 0
        assert withheld.instances == () and withheld.map.max() > 0.5  # the response is not hidden
    kept = predict(ModelConfig(), [9.0, 9.0], foreign=True, keep_absent=True)
    assert all(phrase.foreign and phrase.area > 0 and phrase.score > 0 for phrase in kept)


@pytest.mark.parametrize("spans", [None, [(4, 8)]])
def test_the_phrases_of_a_german_caption_are_foreign(pointing: Grounder, spans: list[Span] | None) -> None:
    encoded = pointing.encode(Image.effect_noise((96, 64), 80).convert("RGB"))
    german = "ein Hund auf der Wiese"
    grounding = encoded.ground(german, spans=spans, threshold=0.1)
    assert all(phrase.foreign and not phrase.area for phrase in grounding) and len(grounding.warnings) == 1
    kept = encoded.ground(german, spans=spans, threshold=0.1, keep_absent=True)
    assert all(phrase.foreign and phrase.area for phrase in kept) and len(kept.warnings) == 1
    english = encoded.ground(CAPTION, threshold=0.1, keep_absent=True)
    assert not any(phrase.foreign for phrase in english) and english.warnings == ()


def test_score_is_the_expected_iou() -> None:
    config = ModelConfig(calibration=CalibrationConfig(score_weights=WEIGHTS))
    predictions = predict(config, [3.0, 3.0])
    features = map_features(evidence([3.0, 3.0]), evidence().responses, 0.5)
    wanted = 1 / (1 + np.exp(-(0.3 + 0.1 * features.sum(1))))
    assert [p.score for p in predictions] == pytest.approx(wanted.tolist())
    assert all(p.score != p.mean_response for p in predictions)
    empty = predict_phrases(find_phrases(CAPTION), evidence([3.0, 3.0]), GEOMETRY, config, threshold=1.0)
    assert [p.score for p in empty] == [0, 0]


def test_features_mean_what_they_are_called() -> None:
    sure, unsure = np.zeros((2, 10, 10), np.float32)
    sure[2:6, 2:6] = 0.99
    unsure[2:6, 2:6] = 0.6
    unsure[6:9, 2:6] = 0.45
    maps = np.stack([sure, unsure])
    found = map_features(MapEvidence(maps, np.stack([sure, 0 * unsure])), maps, 0.5)
    table = dict(zip(MAP_FEATURES, found.T, strict=True))
    assert table["area"][0] == table["area"][1] == pytest.approx(np.log(0.16), abs=1e-3)
    assert all(table[name][0] > table[name][1] for name in ("peak", "inside", "sharpness", "agreement"))
    assert table["agreement"].tolist() == pytest.approx([1, 0]) and table["parts"][0] == np.log(2)
    assert np.isfinite(map_features(MapEvidence(0 * maps, 0 * maps), 0 * maps, 0.5)).all()
    assert map_features(MapEvidence(maps[:0], maps[:0]), maps[:0], 0.5).shape == (0, len(MAP_FEATURES))


def test_weights_of_another_number_are_refused() -> None:
    config = CalibrationConfig(score_weights=(1.0, 2.0, 3.0))
    with pytest.raises(InputError, match="score_weights has 3 numbers"):
        expected_iou(np.zeros((2, len(MAP_FEATURES))), config)


def test_presence_does_not_overflow() -> None:
    features = np.zeros((3, len(MAP_FEATURES)))
    features[:, MAP_FEATURES.index("presence")] = [-1e4, 0.0, 1e4]
    found = presence_probability(features, CalibrationConfig())
    assert found.tolist() == [0, 0.5, 1]


def test_connected_parts_are_inside_the_mask_and_apart() -> None:
    response = blobs((3, 3), (3, 18), (13, 10))
    response[15, 23] = 0.9  # a speck
    parts = connected_parts(response, 0.3)
    assert len(parts) == 3
    masks = [part > 0.3 for part in parts]
    assert not (masks[0] & masks[1]).any() and all((part <= response).all() for part in parts)
    assert connected_parts(0 * response, 0.3) == []


def draw_squares(cells: np.ndarray) -> np.ndarray:
    """The object at a cell is the one of two squares that touch each other in which the cell lies."""
    found = np.full((len(cells), 16, 24), 0.01, np.float32)
    for map, (_, column) in zip(found, cells, strict=True):
        map[4:12, slice(4, 12) if column < 12 else slice(12, 20)] = 0.95
    return found


def test_drawn_objects_divide_a_connected_mask() -> None:
    response = np.zeros((16, 24), np.float32)
    response[4:12, 4:20] = 0.8
    assert len(find_instances(response, 0.45, None)) == 1
    found = find_instances(response, 0.45, draw_squares)
    assert len(found) == 2
    sides = sorted(int(np.nonzero(map > 0.45)[1].min()) for map in found)
    assert sides == [4, 12] and all((map <= response).all() for map in found)
    assert sum(int((map > 0.45).sum()) for map in found) == (response > 0.45).sum()


def test_objects_outside_of_the_phrase_do_not_count() -> None:
    response = np.zeros((16, 24), np.float32)
    response[4:12, 4:8] = 0.8

    def everything(cells: np.ndarray) -> np.ndarray:
        return np.full((len(cells), 16, 24), 0.95, np.float32)

    found = find_instances(response, 0.45, everything)
    assert len(found) == 1 and np.array_equal(found[0] > 0.45, response > 0.45)


def test_every_part_of_a_mask_gets_a_cell() -> None:
    mask = blobs((3, 3), (3, 18), (13, 10)) > 0.4
    cells = spread_cells(mask, 8)
    assert len(cells) == 8 == len({tuple(cell) for cell in cells}) and mask[tuple(cells.T)].all()
    assert len(spread_cells(mask & False, 8)) == 0


@pytest.fixture
def pointing(text: Path) -> Grounder:
    model = small_ppmn(text, pointing=POINTING, query="phrase")
    return Grounder(model, device="cpu", name="points")


def test_a_network_that_points_says_presence_and_draws_objects(pointing: Grounder) -> None:
    image = Image.effect_noise((96, 64), 80).convert("RGB")
    encoded = pointing.encode(image)
    grounding = encoded.ground(CAPTION, threshold=0.3, keep_absent=True)
    maps = encoded.maps(CAPTION, [phrase.span for phrase in grounding])
    assert maps.presence is not None and maps.certainty is not None
    wanted = sigmoid(maps.presence).tolist()
    assert [phrase.presence for phrase in grounding] == pytest.approx(wanted)
    drawn = encoded.draw_objects(np.array([[0, 0], [5, 7]]))
    assert drawn.shape == (2, *encoded.geometry.map_size) and 0 <= drawn.min() <= drawn.max() <= 1
    plural = grounding[0]
    assert plural.phrase.plural and all((i.mask <= plural.mask).all() for i in plural.instances)


def test_calibration_is_saved_with_the_model(pointing: Grounder, tmp_path: Path) -> None:
    model = pointing.model
    model.config = replace(model.config, calibration=CalibrationConfig(WEIGHTS, 0.375, score_weights=WEIGHTS))
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").config.calibration == model.config.calibration
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["calibration"]["min_presence"] = 2
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="min_presence is 2"):
        load_model(tmp_path / "model")


def test_coco_has_one_annotation_per_object_on_request() -> None:
    dogs, ball = predict(ModelConfig())
    grounding = replace(drawn(width=48, height=32), phrases=(dogs, ball))
    together = ppmn.to_coco(grounding)["annotations"]
    apart = ppmn.to_coco(grounding, instances=True)["annotations"]
    assert [a["count"] for a in together] == [2, 1]
    assert [(a["phrase"], a["id"]) for a in apart] == [(1, 1), (1, 2), (2, 3)]
    for annotation, instance in zip(apart, dogs.instances, strict=False):
        assert np.array_equal(coco_mask.decode(annotation["segmentation"]).astype(bool), instance.mask)
        assert annotation["score"] == together[0]["score"] and annotation["area"] == instance.area
    polygons = ppmn.to_coco(grounding, instances=True, polygons=True)["annotations"]
    assert [a["phrase"] for a in polygons] == [a["phrase"] for a in apart]


def test_command_line_keeps_or_withholds_absent_phrases(
    pointing: Grounder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = pointing.model
    model.config = replace(model.config, calibration=CalibrationConfig(min_presence=1.0), threshold=0.1)
    save_model(model, tmp_path / "model")
    Image.effect_noise((96, 64), 80).convert("RGB").save(tmp_path / "image.png")
    command = [
        "ground",
        str(tmp_path / "image.png"),
        CAPTION,
        "--model",
        str(tmp_path / "model"),
        "--json",
        "-",
    ]
    assert main(command) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["info"]["absent"] == found["info"]["empty"] == ["two dogs", "red ball"]
    assert printed.err.count("probably not in the image (presence") == 2
    assert all(a["absent"] and a["area"] == 0 for a in found["annotations"])
    assert main([*command, "--keep-absent", "--instances"]) == 0
    kept = json.loads(capsys.readouterr().out)
    assert kept["info"]["absent"] == ["two dogs", "red ball"] and kept["info"]["empty"] == []
    assert all(a["absent"] and a["area"] > 0 and a["phrase"] in (1, 2) for a in kept["annotations"])


def test_command_line_says_why_a_foreign_caption_has_no_masks(
    pointing: Grounder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointing.model.config = replace(pointing.model.config, threshold=0.1)
    save_model(pointing.model, tmp_path / "model")
    Image.effect_noise((96, 64), 80).convert("RGB").save(tmp_path / "image.png")
    own = [str(tmp_path / "image.png"), "ein [Hund] und eine [Katze] auf der Wiese"]
    command = ["ground", *own, "--model", str(tmp_path / "model"), "--json", "-"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "warning: the caption seems to be German; only English is supported" in printed.err
    assert printed.err.count("not to be relied on: the caption seems not to be English") == 2
    assert "probably not in the image" not in printed.err
    found = json.loads(printed.out)
    assert found["info"]["empty"] == ["Hund", "Katze"] and "German" in found["info"]["warnings"][0]
    assert all(a["foreign"] and a["area"] == a["score"] == 0 for a in found["annotations"])
    assert main([*command, "--keep-absent"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("not to be relied on: the caption seems not to be English") == 2
    kept = json.loads(printed.out)
    assert kept["info"]["empty"] == [] and "German" in kept["info"]["warnings"][0]
    assert all(a["foreign"] and a["area"] > 0 for a in kept["annotations"])
