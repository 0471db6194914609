"""The two-stage baseline measured from files to Average Recall, and the protocols it has."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.benchmark import IDS, write_data
from support.stage_one import small_two_stage, write_stage_one

from ppmn.baselines.proposals import StageOne
from ppmn.baselines.region_choice import TwoStageGrounder
from ppmn.baselines.soft_ruler import soft_iou
from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import open_narratives_of
from ppmn.evaluation.metrics import SPLITS, AverageRecall, iou
from ppmn.evaluation.region_evaluation import evaluate_regions
from ppmn.images import ids_to_rgb

PERFECT = np.select([IDS == 1, IDS == 2, IDS == 70_000, IDS == 300], [1, 2, 3, 4]).astype(np.int32)


def test_from_files_to_average_recall(tmp_path: Path, text: Path) -> None:
    sources = open_narratives_of([DataSpec(write_data(tmp_path / "data"), "val2017")])
    model, tokenizer = small_two_stage(text, plural_rule="truth")
    folder = write_stage_one(tmp_path / "stage_one", {7: (PERFECT, (True, True, True, False))})
    stage_one = StageOne(folder, model.config)
    oracle = evaluate_regions(None, stage_one, sources).compute()
    assert {split: oracle.average_recall[split] for split in SPLITS} == dict.fromkeys(SPLITS, 100.0)
    assert [oracle.phrases[split] for split in SPLITS] == [3, 2, 1, 2, 1]
    soft = evaluate_regions(None, stage_one, sources, protocol="png256")
    assert soft.compute().protocol == "png256"
    grass = next(score for score in soft.phrase_scores.values() if not score.thing)
    assert grass.iou == soft_iou([IDS == 300], IDS == 300) < 1
    found = evaluate_regions(TwoStageGrounder(model, tokenizer), stage_one, sources)
    assert all(0 <= score.iou <= 1 for score in found.phrase_scores.values())
    assert found.difference(evaluate_regions(None, stage_one, sources))[0]["overall"] is not None


def test_the_oracle_is_bound_by_the_proposals(tmp_path: Path, text: Path) -> None:
    sources = open_narratives_of([DataSpec(write_data(tmp_path / "data"), "val2017")])
    merged = np.where(PERFECT == 2, 1, np.where(PERFECT > 2, PERFECT - 1, PERFECT)).astype(np.int32)
    folder = write_stage_one(tmp_path / "stage_one", {7: (merged, (True, True, False))})
    config = small_two_stage(text)[0].config
    recall = evaluate_regions(None, StageOne(folder, config), sources).compute().average_recall
    assert recall["plurals"] == recall["singulars"] == 100  # one region holds both dogs
    missing = np.where(PERFECT == 2, 0, np.where(PERFECT > 2, PERFECT - 1, PERFECT)).astype(np.int32)
    Image.fromarray(ids_to_rgb(missing)).save(folder / "panoptic_seg_predictions" / "000000000007.png")
    recall = evaluate_regions(None, StageOne(folder, config), sources).compute().average_recall
    assert recall["plurals"] == 50 and recall["singulars"] == 100


def test_protocols_are_refused_where_they_are_not_defined(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mask = np.ones((3, 4), bool)
    with pytest.raises(InputError, match="png256 is defined only for the regions of a two-stage model"):
        iou(mask, mask, "png256")
    with pytest.raises(InputError, match="regions are measured by protocol png256, and this run's is full"):
        AverageRecall("full").update_regions(1, [mask], mask, thing=True, plural=False)
    folder = write_stage_one(tmp_path / "stage_one", {})
    stage_one = StageOne(folder, small_two_stage(text)[0].config)
    with pytest.raises(InputError, match="ppmn2022 is defined only for response maps"):
        evaluate_regions(None, stage_one, {}, protocol="ppmn2022")
    data = write_data(tmp_path / "data")
    assert main(["evaluate", "--model", "compact", "--data", str(data), "--protocol", "png256"]) == 2
    said = capsys.readouterr().err
    assert "protocol png256 is defined only for the two-stage baseline, and compact gives no regions" in said
