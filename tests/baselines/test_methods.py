"""Methods other than PPMN, through the same doors: train, resume, load, ground, evaluate."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import small_config

import ppmn
from ppmn import presets
from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import evaluate, open_narratives_of
from ppmn.evaluation.evaluate_corpus import NarrativeWorker
from ppmn.evaluation.predictions import Answers
from ppmn.evaluation.proposal_report import measure_proposals
from ppmn.evaluation.region_rows import (
    oracle_answers,
    own_answers,
    snapped_answers,
    true_segment_answers,
    truth_flag_answers,
)
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.methods import METHODS
from ppmn.model.folder import load_model

RESNET = '{"kind": "resnet", "depth": 18, "form": "torchvision", "norm": "group", "width": 8, "channels": 32}'
RUN = ("warmup=0", "workers=0", "validation_fraction=0.2", "validation_images=2", "checkpoint_every=2")
STAGE_ONE = ("instances=6", "regions=4", "query_layers=1", "query_ffn=32", "min_score=0.2")
STAGE_TWO = ("width=32", "heads=4", "ffn=32", "cross_layers=1")


def arguments(preset: str, scenes: Path, out: Path, fields: tuple[str, ...], *more: str) -> list[str]:
    """The command line of a small run of two epochs."""
    changes = [f"--set={field}" for field in (*fields, *RUN)]
    options = ["--data", str(scenes), "--out", str(out), "--batch-size", "6", "--epochs", "2"]
    return ["train", "--preset", preset, *options, *changes, *more]


def fresh(text: Path, *own: str) -> tuple[str, ...]:
    """Fields of a run that starts from nothing, with small encoders."""
    size = ("model.short_side=64", "model.long_side=96", "lr_image=1e-3")
    return (f"model.image={RESNET}", f"model.text.source={text}", *size, *(f"model.{field}" for field in own))


def assert_resumes_to_the_bit(command: list[str], out: Path) -> None:
    """A run that continues from its last checkpoint but one ends as the whole run did."""
    finished = load_file(out / "model.safetensors")
    log = (out / "log.jsonl").read_text().splitlines()
    (out / "model.safetensors").unlink()
    (out / "best.pt").unlink(missing_ok=True)
    sorted((out / "checkpoints").iterdir())[-1].unlink()
    assert main(command) == 0
    again = load_file(out / "model.safetensors")
    assert finished.keys() == again.keys()
    assert all(torch.equal(finished[name], again[name]) for name in finished)
    losses = [[json.loads(line).get("loss") for line in lines] for lines in (log, steps(out))]
    assert losses[0] == losses[1]


def steps(out: Path) -> list[str]:
    return (out / "log.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def stage_one(scenes: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small stage one."""
    out = tmp_path_factory.mktemp("stage") / "one"
    torch.set_num_threads(1)
    fields = fresh(text, *STAGE_ONE, *STAGE_TWO)
    assert main(arguments("two-stage-small", scenes, out, fields)) == 0
    return out


def test_a_method_of_thirty_lines(
    scenes: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(r"```python\n(.+?)```", shown, re.DOTALL) if "class Toy(" in c)
    names: dict[str, Any] = {}
    exec(code, names)
    monkeypatch.setitem(METHODS, "toy", names["Toy"])
    model = small_config(text)
    shared = {"image": model.image, "text": model.text, "short_side": 64, "long_side": 96}
    monkeypatch.setitem(
        presets.PRESETS,
        "toy",
        lambda: replace(presets.scenes(), model=names["ToyConfig"](**shared), small_epochs=0),
    )
    torch.set_num_threads(1)
    command = arguments("toy", scenes, tmp_path / "toy", ())
    assert main(command) == 0
    losses = [line["bce"] for line in map(json.loads, steps(tmp_path / "toy")) if "bce" in line]
    assert losses[-1] < losses[0]
    assert_resumes_to_the_bit(command, tmp_path / "toy")
    grounding = ppmn.load(tmp_path / "toy", device="cpu").ground(next(scenes.rglob("*.jpg")), "a red ball")
    assert grounding[0].mask.any() or grounding[0].response.max() <= 0.5
    report = tmp_path / "toy.json"
    assert main(["evaluate", "--model", str(tmp_path / "toy"), "--data", str(scenes), "-o", str(report)]) == 0
    assert "Average Recall" in capsys.readouterr().out
    assert json.loads(report.read_text())["model"] == "toy"


def test_a_folder_of_an_unknown_method_is_refused(
    stage_one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(stage_one, tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"method": "magic"}))
    with pytest.raises(
        InputError, match=r"names the method 'magic'; known here are ppmn, mcn-small, two-stage"
    ):
        ppmn.load(folder)
    with pytest.raises(InputError, match=r"known here are ppmn$"):
        load_model(stage_one)  # without the table of methods only PPMN is known


def test_a_missing_tensor_is_named(stage_one: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stage_one, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["head.queries.content"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"1 missing \(head\.queries\.content\)"):
        ppmn.load(folder)


def test_mcn_trains_resumes_and_grounds(scenes: Path, text: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    out = tmp_path / "mcn"
    command = arguments("mcn-small", scenes, out, fresh(text, "language=16"))
    assert main(command) == 0
    assert_resumes_to_the_bit(command, out)
    model = ppmn.load(out, device="cpu").model
    assert int(model.mcn.fusion.norm.num_batches_tracked) > 0  # statistics are saved with the weights
    grounding = ppmn.load(out, device="cpu").ground(next(scenes.rglob("*.jpg")), "a dog and two cats")
    assert len(grounding) == 2


def test_both_stages_train_resume_and_ground(stage_one: Path, scenes: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    out, fields = tmp_path / "two", ("model.stage=two",)
    more = ("--init", str(stage_one), "--cache", str(tmp_path / "cache"), "--set=text_dropout=false")
    command = arguments("two-stage-small", scenes, out, fields, *more)
    assert main(command) == 0
    assert_resumes_to_the_bit(command, out)
    before, after = load_file(stage_one / "model.safetensors"), load_file(out / "model.safetensors")
    shared = [n for n in before if n.startswith(("head.", "image_encoder."))]
    assert shared and all(torch.equal(before[n], after[n]) for n in shared)  # stage one stays as it is
    grounder = ppmn.load(out, device="cpu")
    assert len(grounder.ground(next(scenes.rglob("*.jpg")), "a dog and two cats")) == 2
    assert_rows_of_table_1(grounder, scenes, tmp_path / "proposals.png")


def assert_rows_of_table_1(grounder: Grounder, scenes: Path, picture: Path) -> None:
    """The rows that need the annotation, on two narratives."""
    some = {"scenes": next(iter(open_narratives_of([DataSpec(scenes)]).values()))[:2]}

    def overall(answers: Answers) -> float:
        return evaluate(answers, some).metric.compute().average_recall["overall"] or 0.0

    best, union = (overall(oracle_answers(grounder, kind)) for kind in ("best", "union"))
    assert 0 < best <= union + 1e-9
    for answers in (own_answers(grounder), truth_flag_answers(grounder)):
        assert overall(answers) <= union + 5  # edges between regions that are chosen together are not seen
    assert overall(oracle_answers(grounder, "overlapping")) > 0
    assert 0 <= overall(true_segment_answers(grounder)) <= 100
    assert 0 <= overall(snapped_answers(grounder)) <= 100
    assert overall(snapped_answers(grounder, grounder)) <= union + 1e-9
    report = measure_proposals(grounder, some, picture)
    assert len(report.regions) == 2
    assert "regions per image, 2 images" in report.table()
    assert picture.stat().st_size > 1000


def test_stage_one_continues_and_is_measured_by_its_oracle(
    stage_one: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--model", str(stage_one), "--data", str(scenes)]) == 0
    assert "Average Recall" in capsys.readouterr().out
    worker = NarrativeWorker(str(stage_one), [DataSpec(scenes)], "all", "full", False, "cpu", 1)
    row = {"source": next(iter(worker.sources)), "first": 0, "last": 1}
    assert worker(row)["fault"] == ""  # as the command measures it
    with pytest.raises(InputError, match="only proposes regions"):
        ppmn.load(stage_one, device="cpu").ground(next(scenes.rglob("*.jpg")), "a dog")


def test_stage_two_without_stage_one_is_refused(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = fresh(text, *STAGE_TWO, "stage=two")
    assert main(arguments("two-stage-small", scenes, tmp_path / "run", fields)) == 2
    assert "give --init its model" in capsys.readouterr().err


def test_methods_are_opened_without_the_packages_of_training() -> None:
    code = "import sys; sys.modules['scipy'] = None; import ppmn.grounding.methods"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_method_without_a_neck_refuses_to_freeze_it(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments("mcn-small", scenes, tmp_path / "run", fresh(text, "language=16"))
    assert main([*command, "--set=freeze_neck=true"]) == 2
    assert "has no neck to freeze" in capsys.readouterr().err
