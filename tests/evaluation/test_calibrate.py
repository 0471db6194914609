"""Fitting presence and score, and counting instances, on made-up rows and images."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from support.models import small_ppmn
from support.rectangles import CLOSE, DOGS, write_source

import ppmn
from experiments import answer_rows, calibrate, measure_absent, measure_instances
from experiments.answer_rows import AnswerRow, read_rows
from experiments.calibrate import cross_fitted, fit, half, logistic_regression, reliability, shown
from ppmn.config import ModelConfig, PointingConfig
from ppmn.grounding.calibration import MAP_FEATURES, logistic, presence_probability
from ppmn.grounding.grounder import Grounder
from ppmn.model.folder import save_model

PRESENCE = MAP_FEATURES.index("presence")
BOTH_HALVES = ["9", "39", "55", "65"]  # names that the split holds out, two of each half


def made_up_rows(count: int = 4000) -> list[AnswerRow]:
    """Rows of a world in which presence has the logit 2 x - 1 and the IoU follows one feature."""
    rng, rows = np.random.default_rng(0), []
    for number in range(count):
        x = rng.normal(1, 2)
        present = bool(rng.random() < logistic(np.array(2 * x - 1)))
        features = rng.normal(size=len(MAP_FEATURES))
        features[PRESENCE] = x
        quality = float(np.clip(logistic(np.array(0.5 + features[3])) + rng.normal(0, 0.1), 0, 1))
        row = ("own" if number % 2 else "present") if present else "random"
        rows.append(AnswerRow(row, str(number // 4), present, features.tolist(), x, False, quality * present))
    return rows


def test_logistic_regression_finds_the_weights() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(3, [1, 5], (20000, 2))
    target = logistic(0.5 + features @ np.array([1.0, -0.2]))
    found = logistic_regression(np.column_stack([features, np.ones(len(features))]), target)
    assert found == pytest.approx([0.5, 1.0, -0.2, 0.0], abs=0.12)  # the constant gets no weight


def test_fit_recovers_presence_and_its_limit() -> None:
    rows = made_up_rows()
    found = fit(rows)
    assert found.presence_weights[0] == pytest.approx(-1, abs=0.2)
    assert found.presence_weights[1 + PRESENCE] == pytest.approx(2, rel=0.1)
    assert np.delete(found.presence_weights[1:], PRESENCE) == pytest.approx(0, abs=0.15)
    values = presence_probability(np.array([r.features for r in rows if r.present]), found)
    assert np.mean(values < found.min_presence) == pytest.approx(0.05, abs=0.01)
    assert len(found.score_weights) == len(MAP_FEATURES) + 1


def test_what_has_no_mask_anyway_counts_among_the_phrases_lost() -> None:
    rows = made_up_rows()
    present = [row for row in rows if row.present]
    surest = sorted(present, key=lambda row: -row.features[PRESENCE])[: len(present) // 50]
    rows = [replace(row, empty=row in surest) for row in rows]
    config = fit(rows)
    kept = [row for row in shown(rows, config) if row.present]
    assert 1 - len(kept) / len(present) == pytest.approx(0.05, abs=1 / len(present))
    assert config.min_presence < fit(made_up_rows()).min_presence


def test_cross_fitted_errors_are_small_where_the_world_is_logistic() -> None:
    found = cross_fitted(made_up_rows())
    assert found["presence"]["error"] < 0.03 and found["score"]["error"] < 0.05
    default = found["absent"]["all"]["default"]
    assert default["lost"] == pytest.approx(5, abs=2) and default["caught"] > 50
    assert len(found["presence"]["halves"]) == 2 and found["presence"]["count"] == 4000


def test_models_without_presence_are_fitted_too() -> None:
    rows = [AnswerRow(**(asdict(row) | {"presence": None})) for row in made_up_rows(400)]
    found = cross_fitted(rows)
    assert "presence" not in found and found["score"]["count"] == sum(row.present for row in rows)
    assert fit(rows).presence_weights == () and found["absent"] == {}


def test_reliability_counts_bins() -> None:
    predicted, observed = np.array([0.05, 0.05, 0.95, 1.0]), np.array([0.0, 0.0, 1.0, 1.0])
    found = reliability(predicted, observed)
    assert found["error"] == pytest.approx((2 * 0.05 + 2 * 0.025) / 4)
    assert [b["count"] for b in found["bins"]] == [2, 2]


def test_halves_are_of_about_the_same_size() -> None:
    assert 400 < sum(half(str(n)) for n in range(1000)) < 600 and half("a") == half("a")


@pytest.fixture
def model(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small random model that points, and sources with dogs in the place of all."""
    points = PointingConfig(channels=16, image_layers=1, phrase_layers=1, features=8)
    save_model(small_ppmn(text, pointing=points, query="phrase", threshold=0.2), tmp_path / "model")
    encoder = Grounder(small_ppmn(text), device="cpu")
    load = ppmn.load
    monkeypatch.setattr(
        measure_absent.ppmn,
        "load",
        lambda name, **options: encoder if name == "compact" else load(name, **options),
    )
    for module in (measure_absent, measure_instances):
        monkeypatch.setattr(module, "SOURCES", ("one",))
    for name in ("one", "refcoco"):
        write_source(tmp_path / "photos" / name, [DOGS, CLOSE, DOGS, CLOSE], BOTH_HALVES)
    return tmp_path / "model"


def test_rows_are_collected_fitted_and_written(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, photos = model.parent / "rows.jsonl", model.parent / "photos"
    command = ["calibrate", "--model", str(model), "--data-root", str(photos), "--rows", str(rows)]
    command += ["--phrases", "8", "--processes", "1", "--write", "--figure", str(model.parent / "figure.png")]
    command += ["--json", str(model.parent / "figures.json")]
    monkeypatch.setattr(sys, "argv", command)
    calibrate.main()
    found = read_rows(rows)
    assert {row.row for row in found} >= {"own", "present", "random", "nearest"}
    assert all(row.present == (row.row not in ("random", "nearest", "swapped")) for row in found)
    assert all(row.iou == 0 for row in found if not row.present)
    config = ModelConfig.load(model / "config.json").calibration
    assert len(config.score_weights) == len(MAP_FEATURES) + 1 and 0 < config.min_presence < 1
    figures = json.loads((model.parent / "figures.json").read_text())
    assert figures["calibration"]["min_presence"] == config.min_presence
    assert (model.parent / "figure.png").stat().st_size > 1000
    assert "| score |" in capsys.readouterr().out
    monkeypatch.setattr(answer_rows, "measure_image", None)  # the rows are read, not measured again
    calibrate.main()


def test_matching_instances_takes_each_segment_once() -> None:
    ids = np.zeros((10, 20), np.int32)
    ids[2:8, 1:7], ids[2:8, 10:16] = 1, 2
    first, part, wrong = ids == 1, ids == 1, ids == 0
    part = part & (np.arange(20) < 5)
    assert measure_instances.match([part, first, wrong], ids, [1, 2]) == (1.0,)
    assert measure_instances.match([], ids, [1, 2]) == ()


def test_instances_are_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = model.parent / "figures.json"
    command = ["measure", "--model", str(model), "--data-root", str(model.parent / "photos")]
    monkeypatch.setattr(sys, "argv", [*command, "--json", str(out)])
    measure_instances.main()
    (ways,) = json.loads(out.read_text())["models"].values()
    assert ways["instances"]["plurals"] == 4 and ways["instances"]["segments"] == 8
    assert 0 <= ways["connected parts"]["precision"] <= 100
    assert "| connected parts |" in capsys.readouterr().out
