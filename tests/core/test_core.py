"""What `pip install ppmn` gives without any extra; `make core` runs this where nothing else is installed."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ppmn
from ppmn.cli import main

PROJECT = Path(__file__).resolve().parents[2]
FORMATS = "json,png,panoptic,html,rounds,polygons,yolo,labelme,labelstudio,cvat,cutouts,contact"
BLOCKED = ("torch", "transformers", "scipy", "onnx", "pyarrow", "matplotlib")
BLOCK = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""
NOT_IMPORTED = f"""
assert not set({BLOCKED!r}) & set(sys.modules)
"""
BLOCKER = f"""
{BLOCK}
from ppmn.cli import main
code = main(sys.argv[1:])
{NOT_IMPORTED}
raise SystemExit(code)
"""
SERVE = f"""
{BLOCK}
import json
import ppmn
from fastapi.testclient import TestClient
from ppmn.serve.app import create_app

with TestClient(create_app(ppmn.load()), base_url="http://localhost") as client:
    with open("image.png", "rb") as image:
        id = client.post("/api/images", files={{"image": image}}).raise_for_status().json()["id"]
    answer = client.post(f"/api/images/{{id}}/ground", json={{"caption": "the sky above the grass"}})
    page = client.get("/").raise_for_status().text
{NOT_IMPORTED}
print(json.dumps([page[:15], answer.raise_for_status().json()]))
"""


@pytest.fixture(scope="module")
def grounder() -> Iterator[ppmn.Grounder]:
    """The included model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PPMN_CACHE", raising=False)  # one entry of the cache serves all tests
        yield ppmn.load(runtime="onnx", threads=1)


def picture(width: int, height: int) -> Image.Image:
    image = Image.new("RGB", (width, height), "skyblue")
    image.paste("forestgreen", (0, height // 2, width, height))
    return image


def write_scene(root: Path) -> None:
    """The picture with one narrative, as a split of the benchmark."""
    pixels = "annotations/panoptic_segmentation/val2017"
    for folder in ("images/val2017", pixels):
        (root / folder).mkdir(parents=True)
    picture(90, 60).save(root / "images/val2017/1.jpg")
    ids = np.zeros((60, 90, 3), np.uint8)
    ids[..., 0] = np.where(np.arange(60) < 30, 1, 2)[:, None]
    Image.fromarray(ids).save(root / pixels / "1.png")
    boxes = {1: [0, 0, 90, 30], 2: [0, 30, 90, 30]}
    segments = [
        {"id": n, "category_id": n, "area": 2700, "bbox": box, "iscrowd": 0} for n, box in boxes.items()
    ]
    names = {1: "sky", 2: "grass"}
    panoptic = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 60, "width": 90}],
        "annotations": [{"image_id": 1, "file_name": "1.png", "segments_info": segments}],
        "categories": [{"id": n, "name": name, "isthing": 0} for n, name in names.items()],
    }
    words = [("the sky", ["1"]), ("above", []), ("the grass", ["2"])]
    narrative = {
        "image_id": "1",
        "caption": "the sky above the grass",
        "segments": [
            {
                "utterance": text,
                "segment_ids": ids,
                "noun": bool(ids),
                "plural": False,
                "isthing": False,
            }
            for text, ids in words
        ],
    }
    (root / "annotations/panoptic_val2017.json").write_text(json.dumps(panoptic))
    (root / "annotations/png_coco_val2017.json").write_text(json.dumps([narrative]))


def run(code: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--formats", FORMATS], ["--json", "-"]])
def test_the_command_imports_no_package_of_an_extra(tmp_path: Path, arguments: list[str]) -> None:
    picture(90, 60).save(tmp_path / "image.png")
    found = run(
        BLOCKER, "ground", "image.png", "the sky above the grass", "-o", "out", *arguments, folder=tmp_path
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert (tmp_path / "out" / "grounding.json").is_file()


@pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="fastapi is not installed")
def test_the_server_imports_no_package_of_another_extra(tmp_path: Path) -> None:
    picture(90, 60).save(tmp_path / "image.png")
    found = run(SERVE, folder=tmp_path)
    assert found.returncode == 0, found.stderr[-3000:]
    page, answer = json.loads(found.stdout)
    assert page.lower() == "<!doctype html>"
    assert [phrase["text"] for phrase in answer["phrases"]] == ["sky", "grass"]
    sky, grass = (phrase["box"] for phrase in answer["phrases"])
    assert sky[1] + sky[3] <= grass[1] + 6, "the sky is above the grass"


def test_a_model_is_evaluated_without_an_extra(tmp_path: Path) -> None:
    write_scene(tmp_path / "data")
    found = run(BLOCKER, "evaluate", "--model", "compact", "--data", "data:val2017", folder=tmp_path)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "overall" in found.stdout


def test_a_command_that_needs_torch_says_so(tmp_path: Path) -> None:
    found = run(BLOCKER, "profile", folder=tmp_path)
    assert found.returncode == 2
    assert "pip install 'ppmn[torch]'" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_the_runtime_torch_needs_its_extra() -> None:
    with pytest.raises(ppmn.InputError, match=r"pip install 'ppmn\[torch\]'"):
        ppmn.load(runtime="torch")


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    picture(90, 60).save(tmp_path / "photo.jpg")
    (code,) = re.findall(r"```python\n(.+?)```", (PROJECT / "README.md").read_text("utf-8"), re.DOTALL)
    found = run(code, folder=tmp_path)
    assert found.returncode == 0, found.stderr[-3000:]
    assert (tmp_path / "out" / "grounding.json").is_file()


def test_a_batch_equals_its_images(grounder: ppmn.Grounder) -> None:
    images, captions = [picture(90, 60), picture(64, 64)], ["the sky", "the grass under a blue sky"]
    together = grounder.ground_batch(images, captions)
    for image, caption, found in zip(images, captions, together, strict=True):
        for phrase, alone in zip(found, grounder.ground(image, caption), strict=True):
            np.testing.assert_array_equal(phrase.map, alone.map)
            assert phrase.mask.shape == image.size[::-1]


def test_bad_images_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    assert main(["ground", str(tmp_path / "bad.jpg"), "a dog"]) == 2
    assert capsys.readouterr().err.startswith("ppmn: ")
