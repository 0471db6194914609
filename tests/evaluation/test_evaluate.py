"""`ppmn evaluate` from end to end, on images whose pixels encode their segment ids."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.models import bert_folder, small_ppmn

import ppmn
from ppmn import images
from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.data.targets import targets_ppmn2022
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import evaluate, model_answers, open_narratives_of, ppmn2022_sizes
from ppmn.evaluation.figures import SheetRow, sheet
from ppmn.evaluation.metrics import SPLITS
from ppmn.evaluation.predictions import Prediction, _parse
from ppmn.grounding.grounder import Grounder
from ppmn.model.preprocess import Preprocess

decode = images._decoded
HEIGHT, WIDTH = 60, 80
SEGMENTS = {"A cat": (1,), "two dogs": (2, 3), "the sky": (4,), "a bird": (5,)}
UTTERANCES = ["A cat", " and ", "two dogs", " sit under ", "the sky", " with ", "a kite", "."]
IMAGES = (7, 9, 12)


def pixels(shift: int) -> np.ndarray:
    """Segment ids of one image: a cat, two dogs, the sky; the bird (5) is listed but has no pixels."""
    ids = np.zeros((HEIGHT, WIDTH), np.uint8)
    ids[:20], ids[30:50, 5 + shift : 25 + shift] = 4, 1
    ids[30:40, 40:50], ids[45:55, 40 + shift : 60 + shift] = 2, 3
    return ids


def narrative(image: int, utterances: list[str]) -> dict[str, Any]:
    parts = []
    for text in utterances:
        noun = text in SEGMENTS or text == "a kite"
        ids = [str(i) for i in SEGMENTS.get(text, ())]
        parts.append({"utterance": text, "segment_ids": ids, "plural": len(ids) > 1, "noun": noun})
    return {"image_id": str(image), "annotator_id": 0, "caption": "".join(utterances), "segments": parts}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPMN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tiny"
    images_folder, pngs = folder / "images/val", folder / "annotations/panoptic_segmentation/val"
    images_folder.mkdir(parents=True)
    pngs.mkdir(parents=True)
    images, annotations = [], []
    for shift, image in enumerate(IMAGES):
        ids = pixels(5 * shift)
        Image.fromarray(np.stack([ids, 0 * ids, 0 * ids], -1)).save(pngs / f"{image}.png")
        Image.fromarray(np.stack([ids, 40 * ids, 50 * ids], -1)).save(images_folder / f"{image}.png")
        images.append({"id": image, "file_name": f"{image}.png", "height": HEIGHT, "width": WIDTH})
        segments = [
            {"id": i, "category_id": 2 if i == 4 else 1, "area": 9, "bbox": [0, 0, 9, 9], "iscrowd": 0}
            for i in range(1, 6)
        ]
        annotations.append({"image_id": image, "file_name": f"{image}.png", "segments_info": segments})
    categories = [{"id": 1, "name": "animal", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}]
    panoptic = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations/panoptic_val.json").write_text(json.dumps(panoptic))
    narratives = [narrative(7, ["a kite", "."]), *(narrative(i, UTTERANCES) for i in IMAGES)]
    (folder / "annotations/png_coco_val.json").write_text(json.dumps(narratives))
    return folder


class Fake:
    """A model that reads the segment ids from the pixels and answers as its name says."""

    runtime = SimpleNamespace(name="onnx")  # whose models have no answers of their own

    def __init__(self, name: str, sides: tuple[int, int] = (800, 1333), **_: Any):
        self.name, self.threshold, self.preprocess = name, 0.4, Preprocess(*sides)

    def response_maps(
        self, image: Image.Image, caption: str, spans: Sequence[tuple[int, int]]
    ) -> Iterator[np.ndarray]:
        ids = np.asarray(image)[..., 0].astype(np.int32)
        for start, end in spans:
            row = SEGMENTS[caption[start:end]]
            yield self.answer(np.isin(ids, row), row)

    def quarter_maps(
        self, image: Image.Image, caption: str, spans: Sequence[tuple[int, int]]
    ) -> Iterator[np.ndarray]:
        ids = np.asarray(image)[..., 0].astype(np.int32)
        for start, end in spans:
            row = SEGMENTS[caption[start:end]]
            truth = targets_ppmn2022(ids, [row], *ppmn2022_sizes(*ids.shape))[0]
            yield self.answer(truth, row) + 0.3

    def answer(self, truth: np.ndarray, row: tuple[int, ...]) -> np.ndarray:
        masks = {"truth": truth, "nothing": truth & False, "everything": truth | True}
        masks["cat"] = truth & (row == (1,))
        return np.where(masks[self.name], 0.45, 0.1).astype(np.float32)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppmn, "load", Fake, raising=False)


def run(root: Path, *options: str | Path) -> dict[str, Any]:
    file = root.parent / "run.json"
    assert main(["evaluate", "--data", f"{root}:val", "--out", str(file), *map(str, options)]) == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize("protocol", ["full", "ppmn2022"])
def test_scores_of_perfect_and_empty_answers(root, load, protocol):
    truth = run(root, "--model", "truth", "--protocol", protocol)
    nothing = run(root, "--model", "nothing", "--protocol", protocol)
    paper = {"overall": 9, "things": 6, "stuff": 3, "singulars": 6, "plurals": 3}
    assert truth["phrases"] == paper | {"things_alone": 0, "things_among": 3, "plurals_some": 3}
    assert len(truth["records"]) == 9 and truth["data"][0]["narratives"] == 3
    for split in SPLITS:
        assert truth[split] == pytest.approx(100, abs=0.0011) and nothing[split] == pytest.approx(
            0, abs=0.0011
        )
        assert truth["curve"][split][-1] == 1 and nothing["curve"][split][1] == 0
    assert (truth["protocol"], truth["model"], len(truth["data"][0]["fingerprint"])) == (
        protocol,
        "truth",
        64,
    )
    assert truth["threshold"] == (0.4 if protocol == "full" else 0.5)


def test_full_is_the_mean_iou_at_image_size(root, load, capsys):
    got = run(root, "--model", "everything")
    areas = [np.isin(pixels(5 * k), row).mean() for k in range(3) for row in list(SEGMENTS.values())[:3]]
    assert got["overall"] == pytest.approx(100 * np.mean(areas), abs=1e-9)
    assert got["plurals"] == pytest.approx(100 * np.mean(areas[1::3]), abs=1e-9)
    shown = capsys.readouterr().out
    assert "protocol full" in shown and f"{got['overall']:.1f}" in shown
    assert re.search(r"phrases +9 +6 +3 +6 +3", shown)


def test_border_pixels_are_ignored(root, load):
    file = root / "annotations/panoptic_segmentation/val/7.png"
    rgb = np.array(Image.open(file))
    rgb[rgb[..., 0] == 0] = 255
    Image.fromarray(rgb).save(file)
    got = {(r["image"], r["phrase"]): r["iou"] for r in run(root, "--model", "everything")["records"]}
    ids = pixels(0)
    assert got[7, 2] == pytest.approx(np.count_nonzero(ids == 4) / np.count_nonzero(ids))


def test_empty_truth_is_counted_apart(root, load, capsys):
    file = root / "annotations/png_coco_val.json"
    rows = json.loads(file.read_text())
    file.write_text(json.dumps([*rows, narrative(7, ["A cat", " and ", "a bird"])]))
    got = run(root, "--model", "everything")
    assert (got["phrases"]["overall"], got["empty"], got["empty_found"]) == (10, 1, 0)
    assert run(root, "--model", "truth")["empty_found"] == 1
    assert "1 phrases have an empty ground truth, in no figure above" in capsys.readouterr().out
    released = run(root, "--model", "truth", "--protocol", "ppmn2022")
    assert released["phrases"]["overall"] == 11
    assert released["overall"] == pytest.approx(100 * 10 / 11, abs=0.01)  # both empty is a miss


def test_absent_phrases_have_an_empty_truth(root, load):
    file = root / "annotations/png_coco_val.json"
    rows = json.loads(file.read_text())
    row = narrative(7, ["A cat", " and ", "a bird"])
    row["segments"][2] |= {"segment_ids": [], "absent": True}
    file.write_text(json.dumps([*rows, row]))
    got = run(root, "--model", "everything", "--save-predictions", root / "p.jsonl")
    assert (got["phrases"]["overall"], got["empty"], got["empty_found"]) == (10, 1, 0)
    assert run(root, "--predictions", root / "p.jsonl")["records"] == got["records"]
    released = run(root, "--model", "everything", "--protocol", "ppmn2022")
    assert (released["phrases"]["overall"], released["empty"]) == (10, 0)


def test_saved_predictions_score_the_same(root, load, tmp_path, capsys):
    file = tmp_path / "p.jsonl"
    model = run(root, "--model", "everything", "--save-predictions", file)
    again = run(root, "--predictions", file)
    for key in (*SPLITS, "curve", "interval", "phrases", "records"):
        assert again[key] == model[key]
    lines = file.read_text().splitlines()
    kite = json.loads(lines[0]) | {"phrase_index": 3}
    file.write_text(
        "\n".join([*lines[2:], json.dumps(kite)])
    )  # two are missing, one is of a phrase without truth
    fewer = run(root, "--predictions", file)
    assert (fewer["missing"], fewer["phrases"]["overall"]) == (2, 9)
    lost = sum(r["iou"] for r in model["records"][:2]) / 9
    assert fewer["overall"] == pytest.approx(model["overall"] - 100 * lost)
    shown = capsys.readouterr()
    assert "2 phrases have no prediction and count as zero" in shown.out
    assert "1 lines" in shown.err


def good_line(**change: Any) -> str:
    rle = {"size": [HEIGHT, WIDTH], "counts": Prediction.of(np.eye(HEIGHT, WIDTH, dtype=bool), 1).counts}
    line = {"image_id": 7, "narrative_index": 1, "phrase_index": 0, "rle": rle, "score": 0.5}
    return json.dumps(line | change)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (good_line(image_id=8), "narrative 1 is of image 7, not of 8"),
        (good_line(image_id=None), "image_id is None"),
        (good_line(narrative_index=-1), "narrative_index is -1"),
        (good_line(phrase_index=4), "phrase_index is 4"),
        (good_line(phrase_index=1.5), "phrase_index is 1.5"),
        (good_line(score="high"), "score is 'high'"),
        (good_line(score=float("nan")), "score is nan"),
        (good_line(rle=None), "rle size is None"),
        (good_line(rle={"size": [HEIGHT, WIDTH], "counts": [4800]}), "rle counts is list"),
        (good_line(rle={"size": [HEIGHT, WIDTH], "counts": "0"}), "rle counts cover 0 pixels"),
        (good_line(rle={"size": [HEIGHT, WIDTH], "counts": "\x7f\x01"}), "no character"),
        (
            good_line(
                rle={"size": [30, 80], "counts": Prediction.of(np.zeros((30, 80), bool), 1).counts},
            ),
            "rle size 30 x 80 does not fit image 7 of 60 x 80 pixels",
        ),
        (good_line(source="elsewhere"), "source is 'elsewhere'"),
        (good_line(), "second prediction"),
    ],
)
def test_broken_lines_are_named(root, tmp_path, capsys, line, message):
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{good_line()}\n\n{line}\n")
    assert main(["evaluate", "--predictions", str(file), "--data", f"{root}:val"]) == 2
    error = capsys.readouterr().err
    assert f"{file} line 3: " in error and message in error


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_rle_round_trip_and_truncated_rle_is_refused(height, width, data):
    bits = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    mask = np.array(bits).reshape(height, width)
    prediction = Prediction.of(mask, 0.5)
    assert (prediction.mask() == mask).all()
    rle = {"size": [height, width], "counts": prediction.counts}
    assert _parse(good_line(rle=rle), ["s"])[1] == prediction
    with pytest.raises(InputError):
        _parse(good_line(rle=rle | {"counts": prediction.counts[:-1]}), ["s"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "truth", "--protocol", "ppmn2022", "--save-predictions", "p"], "need protocol full"),
        (["--model", "truth", "--out", "nowhere/run.json"], "nowhere"),
        (["--model", "truth", "--compare", "none.json"], "none.json"),
        (["--model", "truth", "--worst", "-1"], "--worst is -1"),
        (["--predictions", "none.jsonl"], "none.jsonl"),
        (["--out", "run.json"], "nothing to measure"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(root, load, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "--data", f"{root}:val", *options]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ppmn: ") and message in error
    assert not list(tmp_path.glob("*.json"))


def test_image_of_another_size_than_annotated_is_named(root, load, capsys):
    image = root / "images/val/9.png"
    Image.open(image).crop((0, 0, 50, 30)).save(image)
    assert main(["evaluate", "--model", "truth", "--data", str(root)]) == 2
    assert (
        f"{image}: a mask of 30 x 50 pixels does not fit its annotation of 60 x 80" in capsys.readouterr().err
    )


def test_ppmn2022_is_refused_for_other_image_sizes(root):
    with pytest.raises(InputError, match="800/1333, and truth runs at 518/518"):
        model_answers(Fake("truth", (518, 518)), "ppmn2022")


def test_bad_data_is_refused(root, load, capsys):
    assert main(["evaluate", "--model", "truth", "--data", f"{root}:val=2"]) == 2
    assert main(["evaluate", "--model", "truth", "--data", str(root), "--data", str(root)]) == 2
    assert main(["evaluate", "--model", "truth"]) == 2
    Image.new("RGB", (10, 20)).save(root / "annotations/panoptic_segmentation/val/9.png")
    assert main(["evaluate", "--model", "truth", "--data", str(root)]) == 2
    error = capsys.readouterr().err
    for message in ("has weight 2", "two sources are called", "--data ROOT", "20 x 10 pixels"):
        assert message in error


def test_comparison_curves_and_worst(root, load, tmp_path, capsys):
    run(root, "--model", "everything")
    everything = (tmp_path / "run.json").rename(tmp_path / "everything.json")
    moved = root.rename(tmp_path / "moved")  # runs are paired by content, not by folder
    worst, both = tmp_path / "worst.png", tmp_path / "both.png"
    options = ["--worst", "3", "--sheet", worst, "--curves", both, "--with", everything]
    got = run(moved, "--model", "cat", "--compare", everything, *options)
    before = json.loads(everything.read_text())
    shown = capsys.readouterr().out
    difference = re.search(r"difference +([+-]\S+) +([+-]\S+)", shown)
    assert float(difference[1]) == pytest.approx(got["overall"] - before["overall"], abs=0.051)
    assert float(difference[2]) == pytest.approx(got["things"] - before["things"], abs=0.051)
    assert Image.open(both).width > 1000 and Image.open(worst).height > 3 * 270
    alone = tmp_path / "alone.png"
    assert (
        main(["evaluate", "--curves", str(alone), "--with", str(everything), str(tmp_path / "run.json")]) == 0
    )
    assert alone.is_file() and not list(tmp_path.glob("*.part"))
    released = ["--protocol", "ppmn2022", "--compare", str(everything)]
    assert main(["evaluate", "--model", "cat", "--data", str(moved), *released]) == 2
    assert "only runs of one protocol" in capsys.readouterr().err


def test_sheet_shows_each_mask_in_the_color_of_its_phrase(tmp_path):
    image, left = Image.new("RGB", (360, 100), "white"), np.zeros((10, 36), bool)
    left[:, :18] = True
    sheet([SheetRow(image, "left and right", [(0, 4), (9, 14)], [left, ~left], [left])], tmp_path / "s.png")
    shown = np.asarray(Image.open(tmp_path / "s.png")).astype(int)
    row = shown[100]  # through the three pictures: 12 + 360 + 12 + 360 + 12 + 360 + 12
    assert row[12].tolist() == row[371].tolist() == [255, 255, 255]
    assert row[384].tolist() == row[384 + 179].tolist() != row[384 + 180].tolist() == row[743].tolist()
    assert row[756].tolist() == row[384].tolist() and row[756 + 180].tolist() == [255, 255, 255]


def test_full_masks_score_the_mean_area(shared, load, monkeypatch, tmp_path):
    monkeypatch.setenv("PPMN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Fake, "response_maps", full_maps)
    rows = open_narratives_of([DataSpec(shared / "data" / "narrated", "val2017")])
    scores = evaluate(model_answers(Fake("everything")), rows).metric.compute()
    assert scores.phrases["overall"] == 281
    assert scores.average_recall["overall"] == pytest.approx(15.7, abs=0.05)


def full_maps(
    self: Fake, image: Image.Image, caption: str, spans: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    return [np.ones((image.height, image.width), np.float32)] * len(spans)


def test_images_are_decoded_once(root, load, monkeypatch):
    decoded = []
    monkeypatch.setattr(images, "_decoded", lambda *args: decoded.append(args[1]) or decode(*args))
    text = bert_folder(root.parent / "bert")
    grounder = Grounder(small_ppmn(text), device="cpu")
    narratives = open_narratives_of([DataSpec(root, "val")])
    decoded.clear()
    evaluate(model_answers(grounder), narratives)
    files = [name for name in decoded if "panoptic_segmentation" not in name]
    assert sorted(files) == sorted(str(root / f"images/val/{image}.png") for image in IMAGES)


def test_two_sources_may_share_image_ids(root, load, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for part in ("images", "annotations"):
        (other / part).symlink_to(root / part)
    got = run(root, "--model", "truth", "--data", str(other), "--save-predictions", tmp_path / "p.jsonl")
    assert got["phrases"]["overall"] == 18 and len(got["data"]) == 2
    assert run(root, "--predictions", tmp_path / "p.jsonl", "--data", str(other))["overall"] == 100


def test_any_sequence_of_narratives_can_be_measured(root):
    rows = open_narratives_of([DataSpec(root, "val")])["tiny:val"]
    found = evaluate(model_answers(Fake("truth")), {"some": rows[:2]}, keep_predictions=True)
    assert found.metric.compute().average_recall["overall"] == 100
    assert len(found.predictions) == 6 and {key.source for key in found.predictions} == {"some"}


def test_two_processes_score_the_same_as_one(root, load, tmp_path):
    file = tmp_path / "p.jsonl"
    alone = run(root, "--model", "everything", "--save-predictions", file)
    (tmp_path / "run.json").unlink()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "ppmn.cli", "evaluate", "--data", f"{root}:val", "--predictions", str(file)]
    command += ["--out", str(tmp_path / "run.json"), "--save-predictions", str(tmp_path / "again.jsonl")]
    home = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=home, check=False)
    assert done.returncode == 0, done.stderr
    together = json.loads((tmp_path / "run.json").read_text())
    same = set(alone) - {"model", "threshold"}
    assert {key: together[key] for key in same} == {key: alone[key] for key in same}
    assert (tmp_path / "again.jsonl").read_text() == file.read_text()
    assert done.stdout.count("p.jsonl on tiny:val") == 1
