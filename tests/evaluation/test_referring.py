"""`ppmn evaluate --referring` on a made-up folder: a small random model, and one that knows the answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.models import small_ppmn

import ppmn
from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.evaluation.referring import box_iou, mask_box, measure_referring, open_referring
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import MapGeometry
from ppmn.images import ids_to_rgb

HEIGHT, WIDTH = 48, 64
OBJECTS = {  # rows and columns, category, expressions
    1: (np.s_[10:40, 4:24], 1, ["dog on the left", "big dog"]),
    2: (np.s_[20:36, 40:50], 1, ["the small dog", "Right dog!"]),
    3: (np.s_[2:10, 54:62], 0, ["thing"]),
    4: (np.s_[42:46, 2:60], 2, []),
}


def write_referring(root: Path, count: int = 12) -> Path:
    """Images of two dogs, something unknown, and something that nobody described."""
    pngs = root / "annotations/panoptic_segmentation/train"
    pngs.mkdir(parents=True)
    (root / "images/train").mkdir(parents=True)
    images, annotations = [], []
    for number in range(count):
        ids, segments = np.zeros((HEIGHT, WIDTH), np.int32), []
        for id, (where, category, expressions) in OBJECTS.items():
            ids[where] = id
            y, x = where
            box = [x.start, y.start, x.stop - x.start, y.stop - y.start]
            segment = {"id": id, "category_id": category, "area": box[2] * box[3], "bbox": box}
            segments.append(segment | ({"expressions": expressions} if expressions else {}))
        Image.fromarray(ids_to_rgb(ids)).save(pngs / f"{number}.png")
        Image.fromarray((40 * ids).astype(np.uint8)).save(root / f"images/train/{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": HEIGHT, "width": WIDTH})
        annotations.append({"image_id": number, "file_name": f"{number}.png", "segments_info": segments})
    categories = [{"id": 1, "name": "dog", "isthing": 1}, {"id": 2, "name": "mat", "isthing": 1}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations/panoptic_train.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_referring(tmp_path / "expressions")


class Encoded:
    """An encoded image that answers every expression about dogs with the left one."""

    geometry = MapGeometry(HEIGHT, WIDTH, (HEIGHT, WIDTH), (HEIGHT, WIDTH))

    def __init__(self, file: Path) -> None:
        self.image = Image.open(file)
        self.ids = np.asarray(self.image) // 40

    def responses(self, caption: str, spans: list[tuple[int, int]]) -> np.ndarray:
        assert spans == [(0, len(caption))]
        return (self.ids == ("dog" in caption)).astype(np.float32)[None]


class Fake:
    """A model that always takes the left dog, and counts the images that it encodes."""

    name, threshold = "left", 0.5

    def __init__(self, *_: Any, **__: Any) -> None:
        self.encoded = 0

    def encode(self, file: Path) -> Encoded:
        self.encoded += 1
        return Encoded(file)


def test_percentages_by_expression(root: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(ppmn, "load", Fake)
    out = tmp_path / "run.json"
    assert main(["evaluate", "--model", "left", "--referring", str(root), "-o", str(out)]) == 0
    report = json.loads(out.read_text())
    overall, placed = report["referring"]["overall"], report["referring"]["place_words"]
    assert (overall["expressions"], placed["expressions"]) == (12 * 5, 12 * 2)
    assert overall["mask"] == overall["box"] == pytest.approx(100 * 2 / 5)
    assert placed["mask"] == placed["box"] == 50 and placed["mask_interval"] == [50, 50]
    largest = report["largest"]  # the left dog too; the thing of unknown category is left out
    assert largest["overall"]["expressions"] == 12 * 4 and largest["overall"]["mask"] == 50
    assert len(report["records"]) == 60 and report["images"] == 12
    shown, progress = capsys.readouterr()
    assert "%|" not in progress  # bars are shown on terminals only
    assert "40.0 % (40.0 to 40.0)" in shown and "largest of its category, with place words" in shown


def test_an_image_is_encoded_once(root: Path):
    fake = Fake()
    scores = measure_referring(fake, open_referring([DataSpec(root)]))  # type: ignore[arg-type]
    assert fake.encoded == 12 and len(scores) == 60


def test_a_random_model_from_end_to_end(root: Path, text: Path, tmp_path: Path, monkeypatch):
    grounder = Grounder(small_ppmn(text), device="cpu", name="random")
    monkeypatch.setattr(ppmn, "load", lambda name, **_: grounder)
    counts = {}
    for part in ("all", "train", "validation"):
        out = tmp_path / f"{part}.json"
        options = ["--model", "random", "--part", part, "--json", str(out)]
        assert main(["evaluate", "--referring", f"{root}:train", *options]) == 0
        report = json.loads(out.read_text())
        counts[part] = [(r["image"], r["expression"], r["mask_iou"]) for r in report["records"]]
        assert all(0 <= r["mask_iou"] <= 1 and 0 <= r["box_iou"] <= 1 for r in report["records"])
    assert sorted(counts["train"] + counts["validation"]) == sorted(counts["all"])
    encoded = grounder.encode(root / "images/train/0.png")
    mask = encoded.geometry.mask(encoded.responses("big dog", [(0, 7)])[0], grounder.threshold)
    truth = np.zeros((HEIGHT, WIDTH), bool)
    truth[OBJECTS[1][0]] = True
    expected = (mask & truth).sum() / (mask | truth).sum()
    assert (0, "big dog", pytest.approx(expected)) in counts["all"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "m", "--data", "."], "cannot be used with --data"),
        (["--predictions", "p.jsonl"], "cannot be used with --predictions"),
        (["--model", "m", "--worst", "3"], "cannot be used with --worst"),
        (["--model", "m", "--protocol", "ppmn2022"], "cannot be used with --protocol"),
        ([], "nothing to measure"),
    ],
)
def test_options_that_do_not_fit_are_refused(root: Path, capsys, options, message):
    assert main(["evaluate", "--referring", str(root), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_source_without_expressions_is_refused(scenes: Path, capsys):
    assert main(["evaluate", "--model", "compact", "--referring", str(scenes)]) == 2
    assert "has no segment with expressions" in capsys.readouterr().err


boxes = st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(1, 12)] * 2)


@given(boxes, boxes)
def test_box_iou_is_that_of_their_masks(one, other):
    masks = []
    for x, y, w, h in (one, other):
        mask = np.zeros((24, 24), bool)
        mask[y : y + h, x : x + w] = True
        masks.append(mask)
        assert mask_box(mask) == (x, y, w, h)
    assert box_iou(one, other) == pytest.approx((masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum())


def test_an_empty_mask_has_no_box():
    assert mask_box(np.zeros((3, 3), bool)) is None and box_iou(None, (0, 0, 1, 1)) == 0
