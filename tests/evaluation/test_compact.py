"""The model that ships."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from support.precision import uses_bfloat16

import ppmn
from ppmn.cli import main
from ppmn.demo import main as demo
from ppmn.model.folder import model_folder
from ppmn.samples import sample_image


def test_sky_is_above_grass() -> None:
    image = Image.new("RGB", (320, 240), (110, 170, 235))
    ImageDraw.Draw(image).rectangle((0, 120, 320, 240), fill=(60, 140, 40))
    noise = np.random.default_rng(0).integers(-12, 13, (240, 320, 1))
    image = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    sky, grass = ppmn.load().ground(image, "There is the sky above the green grass.")
    upper, lower = slice(0, 120), slice(120, 240)
    assert sky.response[upper].mean() > sky.response[lower].mean()
    assert grass.response[lower].mean() > grass.response[upper].mean()


@uses_bfloat16
def test_bfloat16_masks_are_close_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    image, narrative = sample_image("motorcycle")
    found = []
    for faster in (False, True):
        monkeypatch.setattr("ppmn.grounding.torch_runtime.bfloat16_is_faster", lambda faster=faster: faster)
        found.append(ppmn.load(device="cpu", runtime="torch").ground(image, narrative))
    for exact, rounded in zip(*found, strict=True):
        assert not np.array_equal(exact.map, rounded.map)
        assert (exact.mask & rounded.mask).sum() > 0.85 * (exact.mask | rounded.mask).sum()


def test_configuration_is_of_version_2_with_a_threshold_of_its_own() -> None:
    config = json.loads((model_folder("compact") / "config.json").read_text())
    assert config["version"] == 2 and ppmn.load().threshold == config["threshold"] != 0.5


def test_logs_of_the_training_runs_are_recorded() -> None:
    folder = Path(__file__).parents[2] / "experiments" / "compact"
    for run in ("first_", "second_", "", "pointing2_", "pointing3_"):  # each started from the one before
        made = json.loads((folder / f"{run}train.json").read_text())
        assert len(made["data"]) == 8 and made["config"]["seed"]
        lines = [json.loads(line) for line in (folder / f"{run}log.jsonl").read_text().splitlines()]
        assert any("validation" in line for line in lines)


def test_weights_are_small_enough_to_ship() -> None:
    folder = model_folder("compact")
    trained = (folder / "model.safetensors").stat().st_size
    everything = sum(file.stat().st_size for file in folder.parent.rglob("*.safetensors"))
    assert trained <= 56e6 and everything <= 100e6  # a wheel, which is compressed, stays under 100 MB


def test_demo_grounds_a_photo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo(out=tmp_path) == 0
    printed = capsys.readouterr().out
    assert "red motorcycle" in printed and str(tmp_path / "page.html") in printed
    with Image.open(tmp_path / "overlay.png") as overlay:
        assert overlay.size == (741, 500)


def test_average_recall_on_narratives_by_people(shared: Path, tmp_path: Path) -> None:
    data, out = f"{shared / 'data' / 'narrated'}:val2017", tmp_path / "scores.json"
    assert main(["evaluate", "--data", data, "--model", "compact", "--out", str(out)]) == 0
    scores = json.loads(out.read_text())
    assert scores["overall"] > 54 and scores["stuff"] > 58  # "everything" has 15.7
    assert scores["things_among"] > 41 and scores["things_alone"] > 61
