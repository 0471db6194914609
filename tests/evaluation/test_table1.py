"""The experiment of Table 1 on drawn scenes: its choices, crossed proposals, and all rows end to end."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.encoders import backbone_folder
from support.models import small_config, small_ppmn
from support.rectangles import HELD_OUT, TRAINED, write_source

pytest.importorskip("fcntl")  # experiments lock their files with it; Windows has none

from experiments import table1
from experiments.table1_choices import (
    OBJECT_SCORES,
    PLURAL_THRESHOLDS,
    anchor_shapes,
    best_of,
    by_min_score,
    by_plural_threshold,
    by_threshold,
    choose_settings,
    cross_proposals,
    drawn_images,
    set_fields,
)
from experiments.table1_runs import Runs
from ppmn.baselines.proposal_head import distinct_objects
from ppmn.baselines.two_stage_method import TwoStageSmall, TwoStageSmallConfig, fold_of
from ppmn.config import BackboneConfig, PointingConfig, TextConfig, TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.evaluation.comparison import TableRow
from ppmn.evaluation.evaluate import evaluate, open_narratives_of
from ppmn.evaluation.predictions import Answers
from ppmn.evaluation.region_rows import own_answers, truth_flag_answers
from ppmn.grounding.grounder import load
from ppmn.grounding.methods import METHODS
from ppmn.images import read_image
from ppmn.model.folder import build_model, save_model
from ppmn.presets import PRESETS
from ppmn.synthetic.scenes import write_scenes
from ppmn.training.dataset import TrainingSet
from ppmn.training.feature_cache import FeatureCaches, content_key
from ppmn.training.sources import open_training_sources

POINTING = PointingConfig(channels=16, image_layers=1, phrase_layers=1, features=8)
MCN_ROWS = ["MCN", "MCN, suppression none", "MCN, suppression hard", "MCN, without boxes"]
TWO_STAGE = ["two-stage", "two-stage, crossed", "two-stage twice, crossed", "two-stage twice"]
TWO_STAGE += ["two-stage on objects"]
RULES = ["plurals by text", "plurals by truth", "one rule"]


@pytest.fixture
def narratives(scenes: Path) -> dict[str, list]:
    """Three narratives of drawn scenes."""
    return {"scenes": list(next(iter(open_narratives_of([DataSpec(scenes)]).values()))[:3])}


def two_stage_folder(text: Path, folder: Path, seed: int = 0, **fields: object) -> Path:
    """A small two-stage system with random weights, both stages."""
    image = small_config(text).image
    sizes = {"short_side": 64, "long_side": 96, "instances": 6, "regions": 4, "query_layers": 1}
    small = {"query_ffn": 32, "width": 32, "heads": 4, "ffn": 32, "cross_layers": 1, "min_score": 0.0}
    own = {"stage": "two", **sizes, **small, **fields}
    torch.manual_seed(seed)
    config = TwoStageSmallConfig(image=image, text=TextConfig(str(text)), **own)  # type: ignore[arg-type]
    save_model(build_model(config, METHODS), folder)
    return folder


def overall(answers: Answers, narratives: dict[str, list]) -> float:
    return evaluate(answers, narratives).metric.compute().average_recall["overall"] or 0.0


def test_threshold_is_chosen_by_what_an_evaluation_finds(
    text: Path, narratives: dict[str, list], tmp_path: Path
) -> None:
    save_model(small_ppmn(text), tmp_path / "model")
    grounder = load(tmp_path / "model", runtime="torch")
    scores = by_threshold(grounder, narratives)
    for value in (0.3, 0.5):
        set_fields(grounder, threshold=value)
        assert scores[value] == pytest.approx(overall(own_answers(grounder), narratives))
    kept = choose_settings(grounder, tmp_path / "model", narratives)
    assert kept["threshold"] == {f"{value:g}": score for value, score in scores.items()}
    assert load(tmp_path / "model").threshold == best_of(scores)


def test_plural_threshold_is_chosen_for_each_rule(
    text: Path, narratives: dict[str, list], tmp_path: Path
) -> None:
    folder = two_stage_folder(text, tmp_path / "two")
    grounder = load(folder, runtime="torch")
    for rule, answers_of in (("text", truth_flag_answers), ("all", own_answers)):
        set_fields(grounder, plural_rule=rule)
        scores = by_plural_threshold(grounder, narratives, answers_of)
        assert list(scores) == list(PLURAL_THRESHOLDS)
        for value in (0.05, 0.5):  # regions that are remembered are those that are found
            set_fields(grounder, plural_threshold=value)
            assert scores[value] == pytest.approx(overall(answers_of(grounder), narratives))
    assert "encode" not in vars(grounder) or grounder.encode.__name__ == "encode"
    (name,) = choose_settings(load(folder, runtime="torch"), folder, narratives)
    assert name == "plural_threshold"


def test_settings_are_chosen_once(tmp_path: Path) -> None:
    runs = Runs.__new__(Runs)
    scores = {0.1: 4.0, 0.5: 7.0, 0.9: 7.0}
    assert Runs.chosen(runs, tmp_path / "chosen.json", lambda: scores) == 0.5
    assert Runs.chosen(runs, tmp_path / "chosen.json", lambda: pytest.fail("chosen again")) == 0.5
    assert json.loads((tmp_path / "chosen.json").read_text()) == {"0.1": 4.0, "0.5": 7.0, "0.9": 7.0}


def test_score_of_objects_is_chosen_by_their_limit(
    text: Path, narratives: dict[str, list], tmp_path: Path
) -> None:
    grounder = load(two_stage_folder(text, tmp_path / "two", pointing=POINTING), runtime="torch")
    scores = by_min_score(grounder, narratives, OBJECT_SCORES)
    assert list(scores) == list(OBJECT_SCORES)
    assert all(0 <= score <= 100 for score in scores.values())


def test_distinct_objects_score_by_their_surety_and_their_point() -> None:
    drawn = torch.zeros(4, 8, 8)
    drawn[0, :4, :4] = 0.8
    drawn[1, :4, :4] = 0.9  # the same, more sure
    drawn[2, :4] = 0.7  # twice as large: another object
    drawn[3, 6:, 6:] = 0.95  # its own point lies elsewhere
    tokens_wide = 4
    points = torch.tensor([0, 1, 3, 0])  # pixels (0, 0), (0, 2), (0, 6) and (0, 0)
    found = distinct_objects(drawn, points, tokens_wide)
    assert found.scores.tolist() == pytest.approx([0.9, 0.7])
    assert torch.equal(found.probabilities, drawn[[1, 2]])
    assert found.instance.tolist() == [True, True]
    nothing = distinct_objects(torch.zeros(2, 8, 8), torch.tensor([0, 1]), tokens_wide)
    assert nothing.probabilities.shape == (0, 8, 8)


def test_anchors_are_the_means_of_training_boxes(tmp_path: Path) -> None:
    boxes = [np.s_[0:4, 0:8], np.s_[10:30, 0:20], np.s_[0:36, 30:78], np.s_[0:1, 0:1]]
    scenes = [{1: ("dog", box)} for box in boxes]
    write_source(tmp_path, scenes, [*TRAINED, "3", HELD_OUT[0]])
    config = TrainConfig(small_config(Path("text")))
    anchors = json.loads(anchor_shapes([DataSpec(tmp_path)], config))
    assert anchors == pytest.approx([8 / 80, 4 / 40, 20 / 80, 20 / 40, 48 / 80, 36 / 40], abs=1e-3)


def test_crossed_proposals_come_from_the_network_that_had_not_seen_the_image(
    scenes: Path, text: Path, tmp_path: Path
) -> None:
    one, first, second = (
        two_stage_folder(text, tmp_path / name, seed, stage="one", fold=fold)
        for seed, (name, fold) in enumerate((("one", "all"), ("first", "first"), ("second", "second")))
    )
    model = replace(load(one).model.config, stage="two", crossed="halves")
    frozen: dict[str, Any] = {"lr_image": 0.0, "lr_text": 0.0, "text_dropout": False}
    config = TrainConfig(model, epochs=1, batch_size=1, **frozen)
    caches = {"cache": tmp_path / "cache", "features": tmp_path / "features"}
    cross_proposals(config, [DataSpec(scenes)], one, (first, second), **caches)
    sources = open_training_sources([DataSpec(scenes)])
    files = drawn_images(TrainingSet(sources, config, load(one).model, FeatureCaches()))
    folds = set()
    for file in files[:3]:
        fold = fold_of(file.stem)
        folds.add(fold)
        other: TwoStageSmall = load(second if fold == "first" else first).model
        other.config = replace(other.config, stage="two")
        with torch.no_grad():
            (own,) = other.feature_encoder.features([other.preprocess(read_image(file))])
        key = content_key(file.read_bytes())
        (entry,) = (tmp_path / "cache").rglob(f"{key}.safetensors")
        assert torch.allclose(load_file(entry)["vectors"].float(), own["vectors"], atol=1e-2, rtol=1e-2)
    assert len(folds) == 2
    assert len(list((tmp_path / "cache" / "image").rglob("*.safetensors"))) == len(files)
    part = replace(config, epochs=2, batch_size=2)  # of an odd number of images one is left in an epoch
    assert set(drawn_images(TrainingSet(sources, part, load(one).model, FeatureCaches()))) <= set(files)


def test_ppmn_comes_first_and_rows_trained_otherwise_last() -> None:
    kinds = {"b": "below", "oracle": "oracle", "MCN": "things", "two-stage": "system", "PPMN": "system"}
    rows = [TableRow(name, {}, kind) for name, kind in kinds.items()]  # type: ignore[arg-type]
    assert [row.name for row in table1.in_order(rows)] == ["PPMN", "two-stage", "MCN", "oracle", "b"]


def test_the_row_of_objects_needs_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--data", str(tmp_path), "--test", str(tmp_path), "--out", str(tmp_path), "--rows", "objects"]
    with pytest.raises(SystemExit):
        table1.main(command)
    assert "need --pointing" in capsys.readouterr().err


def tiny_fields(backbone: Path) -> list[str]:
    """A small frozen image encoder for every run."""
    image = {"kind": "backbone", "source": str(backbone), "channels": 128}
    run = ("warmup=0", "workers=0", "validation_fraction=0.2", "checkpoint_every=100")
    return [f"model.image={json.dumps(image)}", *run]


def pointing_model(backbone: Path, folder: Path) -> Path:
    """A random PPMN that points, on the same encoders."""
    image = BackboneConfig(source=str(backbone), channels=128)
    model = PRESETS["compact"]().model
    config = replace(model, image=image, pixels=8, rounds=1, pointing=POINTING)
    torch.manual_seed(3)
    save_model(build_model(config), folder)
    return folder


def table_command(root: Path, scenes: Path, *rows: str) -> list[str]:
    """The command line of a tiny table."""
    backbone = backbone_folder(root / "backbone", "dinov2")
    pointing = pointing_model(backbone, root / "pointing")
    write_scenes(root / "test", 6, split="val", seed=9)
    options = {"--data": scenes, "--test": root / "test", "--out": root / "out", "--pointing": pointing}
    numbers = {"--epochs": 2, "--batch-size": 6, "--sides": "56x84", "--validation-images": 3}
    command = [str(part) for pair in {**options, **numbers}.items() for part in pair]
    fields = [part for field in tiny_fields(backbone) for part in ("--set", field)]
    return [*command, "--precision", "float32", *fields, "--rows", *rows]


@pytest.mark.soak
def test_the_whole_table_on_drawn_scenes(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    rows = [row for row in table1.ROWS if row not in ("shipped", "ppmn")]
    command = table_command(tmp_path, scenes, *rows, "ppmn")
    table1.main(command)
    written = (tmp_path / "out" / "table1.md").read_text()
    assert written in capsys.readouterr().out
    lines = written.splitlines()
    first = next(line for line in lines if line.startswith("| ") and "overall" not in line)
    assert first.startswith("| PPMN |")  # though its row was asked for last
    names = [f"{system}, {rule}" for system in TWO_STAGE for rule in RULES]
    names = [f"{name} †" if "truth" in name else name for name in names]
    names += [*MCN_ROWS, "true segments, matched †", "true segments, PPMN †", "oracle of objects, union †"]
    for name in names:
        assert sum(line.startswith(f"| {name} |") for line in lines) == 3, name
    assert written.index("trained otherwise") < written.index("| two-stage on objects, plurals by text |")
    assert "stage-two-half 0." in written and "minutes in all" in written
    assert (tmp_path / "out" / "table1.png").stat().st_size > 10_000
    assert budgets(tmp_path / "out") == {"ppmn": 2, "stage-one-half": 1, "stage-two-half": 1} | {
        "stage-two-true": 1,
        "stage-two-objects": 1,
        "stage-two-crossed-half": 1,
        "stage-one": 2,
        "stage-two-crossed": 2,
        "mcn": 2,
    }
    assert_nothing_is_done_again(command, tmp_path / "out")


def budgets(out: Path) -> dict[str, int]:
    """The epochs of some runs."""
    names = ("ppmn", "stage-one-half", "stage-two-half", "stage-two-true", "stage-two-objects")
    found = {}
    for name in (*names, "stage-two-crossed-half", "stage-one", "stage-two-crossed", "mcn"):
        found[name] = json.loads((out / "runs" / name / "train.json").read_text())["config"]["epochs"]
    return found


def assert_nothing_is_done_again(command: list[str], out: Path) -> None:
    """The same command again reads what is there; a report that is missing is measured again."""
    before = (out / "table1.md").read_text()
    files = {f: f.stat().st_mtime_ns for f in out.rglob("*") if f.is_file()}
    kept = {f for f in files if f.suffix != ".lock" and f.name not in ("table1.md", "table1.png")}
    started = time.monotonic()
    table1.main(command)
    assert time.monotonic() - started < 120
    assert (out / "table1.md").read_text() == before
    assert {f for f in kept if f.stat().st_mtime_ns != files[f]} == set()
    gone = out / "reports" / "MCN.json"
    figures = json.loads(gone.read_text())
    gone.unlink()
    table1.main(command)
    assert json.loads(gone.read_text())["things"] == figures["things"]
