"""The two-stage baseline measured from files to Average Recall, and the protocols it has."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.benchmark import IDS, write_data
from support.stage_one import small_two_stage, write_stage_one

from ppmn.baselines.png256_iou import png256_iou
from ppmn.baselines.proposals import StageOne
from ppmn.baselines.region_choice import TwoStageGrounder
from ppmn.baselines.two_stage_folder import load_two_stage, save_two_stage
from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import open_narratives_of
from ppmn.evaluation.metrics import SPLITS, AverageRecall, iou
from ppmn.evaluation.region_evaluation import evaluate_regions
from ppmn.evaluation.report import read_report
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
    assert grass.iou == png256_iou([IDS == 300], IDS == 300) < 1
    found = evaluate_regions(TwoStageGrounder(model, tokenizer), stage_one, sources)
    assert all(0 <= score.iou <= 1 for score in found.phrase_scores.values())
    assert found.difference(evaluate_regions(None, stage_one, sources))[0]["overall"] is not None


@pytest.fixture
def baseline(tmp_path: Path, text: Path) -> dict[str, Path]:
    """A small second stage as a model folder, one image, and the proposals of stage one for it."""
    save_two_stage(*small_two_stage(text), tmp_path / "two_stage")
    proposals = write_stage_one(tmp_path / "stage_one", {7: (PERFECT, (True, True, True, False))})
    data = write_data(tmp_path / "data")
    return {"--model": tmp_path / "two_stage", "--proposals": proposals, "--data": data}


def command(options: dict[str, Path], *more: str) -> list[str]:
    return ["evaluate", *(str(part) for pair in options.items() for part in pair), *more]


def test_the_command_measures_by_both_protocols(
    baseline: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masks, out = tmp_path / "masks.jsonl", {p: tmp_path / f"{p}.json" for p in ("full", "png256")}
    assert main(command(baseline, "-o", str(out["full"]), "--save-predictions", str(masks))) == 0
    assert main(command(baseline, "-o", str(out["png256"]), "--protocol", "png256")) == 0
    said = capsys.readouterr().out
    assert "two_stage on data:val2017: protocol full" in said and "protocol png256" in said
    sources = open_narratives_of([DataSpec(baseline["--data"])])
    grounder = load_two_stage(baseline["--model"])
    stage_one = StageOne(baseline["--proposals"], grounder.config)
    for protocol in ("full", "png256"):
        expected = evaluate_regions(grounder, stage_one, sources, protocol=protocol).phrase_scores
        found = read_report(out[protocol])
        assert found["threshold"] is None and len(expected) == 3
        assert [r["iou"] for r in found["records"]] == [expected[key].iou for key in sorted(expected)]
    again = {"--predictions": masks, "--data": baseline["--data"]}
    assert main(command(again, "-o", str(tmp_path / "again.json"))) == 0  # its masks, measured as files
    records = [read_report(file)["records"] for file in (tmp_path / "again.json", out["full"])]
    assert [r["iou"] for r in records[0]] == pytest.approx([r["iou"] for r in records[1]])


@pytest.mark.parametrize(
    ("drop", "more", "sentence"),
    [
        ("--proposals", (), "is the published two-stage baseline, which chooses among regions of files"),
        ("--proposals", ("--protocol", "png256"), "measure it by ppmn evaluate --proposals DIR"),
        ("--model", ("--predictions", "x"), "--proposals needs the model that chooses among them"),
        ("--data", (), "nothing to measure on"),
        ("", ("--protocol", "ppmn2022"), "ppmn2022 is defined only for response maps"),
        ("", ("--protocol", "png256", "--worst", "2"), "--worst draws masks of the image's size"),
        ("", ("--protocol", "png256", "--save-predictions", "x"), "need protocol full"),
        ("", ("--engine", "ray"), "--engine cannot be used with --proposals"),
        ("", ("--runtime", "onnx"), "--runtime cannot be used with --proposals"),
        ("", ("--device", "cuda:99"), "the device cuda:99 cannot be used"),
        ("", ("--model", "compact"), "names the method 'ppmn', not 'two-stage'"),
        ("", ("--proposals", "nowhere"), "nowhere is not the output of stage one"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    drop: str,
    more: tuple[str, ...],
    sentence: str,
    baseline: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {name: value for name, value in baseline.items() if name != drop}
    assert main(command(options, *more)) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.strip().splitlines()) == 1


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
