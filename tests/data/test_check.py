"""`ppmn data check`: counts of a whole data set, and every damage by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.benchmark import write_data

from ppmn.cli import main
from ppmn.data.index import open_narratives


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def counts(printed: str) -> dict[str, int]:
    lines = (line.rstrip().removesuffix("per narrative") for line in printed.splitlines() if ":" not in line)
    return {
        line[:24].strip(): int(line[24:34].replace(",", "")) for line in lines if line[24:34].strip("count ")
    }


def test_counts_of_a_whole_data_set(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(data)]) == 0
    found = counts(capsys.readouterr().out)
    assert found == {
        "images": 1,
        "segments": 4,
        "narratives": 3,
        "noun phrases": 5,
        "grounded": 3,
        "singular": 2,
        "plural": 1,
        "things": 2,
        "stuff": 1,
        "grounded segments": 4,
        "problems": 0,
    }


def test_narratives_are_optional(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "annotations/png_coco_val2017.json").unlink()
    assert main(["data", "check", f"{data}:val2017"]) == 0
    assert counts(capsys.readouterr().out) == {"images": 1, "segments": 4, "problems": 0}


def panoptic(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return edit("annotations/panoptic_val2017.json", change)


def narratives(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return edit("annotations/png_coco_val2017.json", change)


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    def damage(root: Path) -> None:
        content = json.loads((root / name).read_text())
        change(content)
        (root / name).write_text(json.dumps(content))

    return damage


def segments(content: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content["annotations"][0]["segments_info"]
    return found


IMAGE, PNG = "images/val2017/7.jpg", "annotations/panoptic_segmentation/val2017/7.png"
OTHER = {"id": 8, "file_name": "8.jpg", "height": 3, "width": 6}
MISSING_SEGMENT = narratives(lambda n: n[0]["segments"][0].update(segment_ids=["1", "5"]))
UNANNOTATED = narratives(lambda n: n[0].update(image_id="8"))
DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda root: (root / IMAGE).unlink(), "7: .*7.jpg is not a file"),
    (lambda root: (root / PNG).unlink(), "7: .*7.png is not a file"),
    (
        lambda root: (root / IMAGE).write_bytes((root / IMAGE).read_bytes()[:300]),
        "7: .*7.jpg is damaged or cut short",
    ),
    (
        lambda root: (root / PNG).write_bytes(b"no image"),
        "7: .*7.png is not an image in a format that can be read",
    ),
    (lambda root: Image.new("RGB", (6, 4)).save(root / IMAGE), "7: .*7.jpg is 6 x 4, .* say 6 x 3"),
    (lambda root: Image.new("RGB", (5, 3)).save(root / PNG), "7: .*7.png is 5 x 3, .* say 6 x 3"),
    (MISSING_SEGMENT, "7: narrative 0, utterance 'Two dogs' names segment 5, which the image does not have"),
    (UNANNOTATED, "8: narrative 0 is of an image without annotations"),
    (
        narratives(lambda n: n[0]["segments"][2].update(utterance="meadow")),
        "7: .*'meadow' is not in the caption, which has 'Grass' there",
    ),
    (panoptic(lambda p: segments(p).pop(1)), "7: .*7.png has segment 2, which is not in the annotations"),
    (panoptic(lambda p: segments(p).append(segments(p)[0])), "7: segment 1 is listed 2 times"),
    (panoptic(lambda p: segments(p)[0].update(area=5)), "7: segment 1 has 6 pixels, .* say 5"),
    (panoptic(lambda p: p["categories"].pop()), "7: segment 300 is of category 193, which is not listed"),
    (panoptic(lambda p: p["images"].append(OTHER)), "8: the image has no annotation"),
    (panoptic(lambda p: p["images"].append(p["images"][0])), "7: the image is listed 2 times"),
    (
        panoptic(lambda p: p["annotations"].append(p["annotations"][0])),
        "7: the image has several annotations",
    ),
    (
        panoptic(lambda p: p["annotations"].append(p["annotations"][0] | {"image_id": 9})),
        "9: the image is annotated but not listed",
    ),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=[expected for _, expected in DAMAGES])
def test_every_damage_is_reported(
    data: Path, damage: Callable[[Path], Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(data)
    assert main(["data", "check", str(data)]) == 1
    assert re.search(f"val2017, image {expected}", capsys.readouterr().out)


@pytest.mark.parametrize(("damage", "left"), [(MISSING_SEGMENT, 2), (UNANNOTATED, 1)])
def test_reader_warns_of_problems(data: Path, damage: Callable[[Path], Any], left: int) -> None:
    damage(data)
    with pytest.warns(UserWarning, match="1 problems"):
        found = open_narratives(data, "val2017")
    assert len(found) == left
    assert all(
        1 not in p.segment_ids for n in found for p in n.phrases
    )  # no phrase keeps only some of its dogs


def test_missing_annotations_are_an_input_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(data / "images")]) == 2
    assert "annotations/panoptic_*.json" in capsys.readouterr().err
    (data / "annotations/png_coco_test.json").write_text("[]")
    assert main(["data", "check", str(data)]) == 2
    assert "panoptic_test.json is missing" in capsys.readouterr().err


def test_counts_of_the_narrated_images(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(shared / "data/narrated")]) == 0
    found = counts(capsys.readouterr().out)
    wanted = {"images": 40, "narratives": 40, "noun phrases": 541, "grounded": 281, "problems": 0}
    assert {name: found[name] for name in wanted} == wanted
