"""Fine-tuning by one command, on a small stand-in: with captions, and with category masks only."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from support.models import small_ppmn

import ppmn
from ppmn.cli import main
from ppmn.config import CalibrationConfig
from ppmn.data.panoptic import read_panoptic
from ppmn.model.folder import load_model, save_model

PROJECT = Path(__file__).resolve().parents[2]
SMALL = ("--epochs=1", "--batch-size=4", "--set=workers=0", "--set=validation_images=2")


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was calibrated."""
    network = small_ppmn(text, query="phrase")
    object.__setattr__(network.config, "calibration", CalibrationConfig(min_presence=0.3))
    folder = tmp_path_factory.mktemp("model")
    save_model(network, folder)
    return folder


@pytest.fixture
def masks_only(scenes: Path, tmp_path: Path) -> Path:
    """The scenes without their captions."""
    root = tmp_path / "masks"
    shutil.copytree(scenes, root, ignore=shutil.ignore_patterns("png_coco_*"))
    return root


def finetune(model: Path, data: Path, out: Path, *more: str) -> int:
    return main(["train", "--init", str(model), "--data", str(data), "-o", str(out), *SMALL, *more])


@pytest.mark.parametrize("captions", [True, False])
def test_one_command_trains_a_model_further(
    captions: bool, model: Path, scenes: Path, masks_only: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert finetune(model, scenes if captions else masks_only, out, "--log", "none") == 0
    before, after = load_model(model), load_model(out)
    changed = {n for n, t in after.state_dict().items() if not torch.equal(t, before.state_dict()[n])}
    assert any(name.startswith("head.") for name in changed)
    assert not any(name.startswith(("image_encoder.", "text_encoder.")) for name in changed)
    assert after.config.calibration == CalibrationConfig()  # what was fitted does not fit any more
    assert len(ppmn.load(out, device="cpu").ground(Image.new("RGB", (64, 48)), "a red ball")) == 1
    assert not (out / "tensorboard").exists()


def test_the_documented_conversion_gives_data_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """COCO instances, as annotation tools export them, by the code in docs/finetuning.md."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "MINE/images/train").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "MINE/images/train/a.jpg")
    squares = [[2, 2, 12, 2, 12, 12, 2, 12], [8, 2, 20, 2, 20, 12, 8, 12]]
    annotations = [
        {
            "id": n,
            "image_id": 7,
            "category_id": 3,
            "segmentation": [s],
            "area": 100,
            "iscrowd": 0,
            "bbox": [0] * 4,
        }
        for n, s in enumerate(squares, 1)
    ]
    images = [{"id": 7, "file_name": "a.jpg", "width": 40, "height": 30}]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "basket"}]}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    text = (PROJECT / "docs/finetuning.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    exec(code, {})
    assert main(["data", "check", "MINE"]) == 0, capsys.readouterr().out
    (image,) = read_panoptic(Path("MINE"), "train").images
    ids = image.ids()
    assert [s.area for s in image.segments] == [
        int((ids == s.id).sum()) for s in image.segments
    ] and ids.max() == 2


def test_curves_go_where_they_are_asked_for(
    model: Path, masks_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    logged: list[tuple[dict[str, float], int]] = []

    def init(**options: Any) -> SimpleNamespace:
        started.append(options)
        return SimpleNamespace(log=lambda values, step: logged.append((values, step)))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    assert finetune(model, masks_only, tmp_path / "run", "--log", "wandb") == 0
    assert started[0]["project"] == "ppmn" and started[0]["config"]["config"]["epochs"] == 1
    assert logged[0][1] == 1 and logged[0][0]["loss"] > 0
    assert "validation/overall" in logged[-1][0]


def test_missing_packages_and_presets_are_sentences(
    model: Path, masks_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert finetune(model, masks_only, tmp_path / "run", "--log", "wandb") == 2
    assert "wandb is not installed" in capsys.readouterr().err
    data = ["--data", str(masks_only), "-o", str(tmp_path / "other")]
    assert main(["train", *data]) == 2
    assert "--preset is missing" in capsys.readouterr().err
    assert main(["train", "--preset", "finetune", *data]) == 2
    assert "give it with --init" in capsys.readouterr().err
