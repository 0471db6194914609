"""Which narratives are measured, and how phrases are split by the other things of their kind."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.benchmark import write_data

from ppmn.cli import main
from ppmn.config import TrainConfig
from ppmn.data.narratives import AnnotatedPhrase
from ppmn.data.panoptic import DataSpec, PanopticImage, Segment
from ppmn.data.partition import held_out, in_part
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import evaluate, instance_split, open_narratives_of
from ppmn.evaluation.metrics import INSTANCE_SPLITS
from ppmn.evaluation.report import build_report, compare_reports, read_report, write_report
from ppmn.presets import compact
from ppmn.training.sources import Source
from ppmn.training.validation import validation_narratives


def image_of(*categories: int, crowd: int | None = None) -> PanopticImage:
    """An image with a segment of each category, numbered from 1; `crowd` is the one that is a crowd."""
    segments = [Segment(n, c, 9, (0, 0, 3, 3), iscrowd=n == crowd) for n, c in enumerate(categories, 1)]
    return PanopticImage(1, Path("1.jpg"), Path("1.png"), 3, 3, tuple(segments))


@pytest.mark.parametrize(
    ("categories", "crowd", "segments", "expected"),
    [
        ((7, 8), None, (1,), "things_alone"),
        ((7, 7), None, (1,), "things_among"),
        ((7, 7), 2, (1,), "things_among"),  # a crowd of the kind is another of it
        ((7, 8, 7), None, (1, 3), None),  # all of the kind
        ((7, 7, 7), None, (1, 3), "plurals_some"),
        ((7, 8, 8), None, (1, 2), "plurals_some"),  # all sevens, some of the eights
        ((7, 7), None, (), None),
    ],
)
def test_phrases_are_split_by_others_of_their_kind(categories, crowd, segments, expected):
    phrase = AnnotatedPhrase(0, 3, segments, isthing=True, absent=not segments)
    assert instance_split(phrase, image_of(*categories, crowd=crowd)) == expected


def test_stuff_is_in_no_instance_split():
    assert instance_split(AnnotatedPhrase(0, 3, (1,), isthing=False), image_of(7, 7)) is None


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.sets(st.integers(1, 6), min_size=1))
def test_every_singular_thing_is_alone_or_among(categories, chosen):
    segments = tuple(sorted(s for s in chosen if s <= len(categories))) or (1,)
    found = instance_split(AnnotatedPhrase(0, 1, segments, isthing=True), image_of(*categories))
    if len(segments) == 1:
        assert (found == "things_among") == (categories.count(categories[segments[0] - 1]) > 1)
        assert found in ("things_alone", "things_among")
    else:
        assert found in ("plurals_some", None)


def perfect(source: str, narrative: Any) -> Any:
    """The true masks."""
    for phrase in narrative.phrases:
        if phrase.segment_ids:
            yield np.isin(narrative.image.ids(), phrase.segment_ids), 1.0


def test_reports_without_instance_splits_are_still_read(tmp_path: Path):
    root = write_data(tmp_path / "data")
    sources = open_narratives_of([DataSpec(root, "val2017")])
    report = build_report(evaluate(perfect, sources).metric, "model", 0.5, sources)
    assert (report["things_alone"], report["things_among"]) == (100, None)
    old = {k: v for k, v in report.items() if k not in ("part", *INSTANCE_SPLITS)}
    old["records"] = [{k: v for k, v in r.items() if k != "instances"} for r in report["records"]]
    write_report(old, tmp_path / "old.json")
    difference, only_one = compare_reports(report, read_report(tmp_path / "old.json"))
    assert difference["things_alone"].mean == 0 and only_one == 0
    assert main(["evaluate", "--curves", str(tmp_path / "c.png"), "--with", str(tmp_path / "old.json")]) == 0


@given(st.lists(st.text("abé01_-. ", min_size=1, max_size=8), max_size=20))
def test_train_and_validation_are_a_partition(names):
    images = [PanopticImage(n, Path(f"{name}.jpg"), Path(), 1, 1, ()) for n, name in enumerate(names)]
    train, validation = ({i.id for i in images if in_part(i, part)} for part in ("train", "validation"))
    assert train.isdisjoint(validation) and train | validation == {i.id for i in images}
    assert validation == {i.id for i in images if held_out(i, TrainConfig.validation_fraction)}


@pytest.fixture
def bare(scenes: Path, tmp_path: Path) -> Path:
    """The scenes without their narratives."""
    shutil.copytree(scenes, tmp_path / "bare")
    (tmp_path / "bare" / "annotations" / "png_coco_train.json").unlink()
    return tmp_path / "bare"


@pytest.mark.parametrize("narrated", [True, False])
def test_parts_of_a_source_are_measured(scenes: Path, bare: Path, narrated: bool):
    root = scenes if narrated else bare
    names = {}
    for part in ("all", "train", "validation"):
        (rows,) = open_narratives_of([DataSpec(root, "train")], part).values()
        names[part] = [(n.index, n.caption) for n in rows]
        assert len(rows) == len(names[part]) == len(rows[:])
    assert sorted(names["train"] + names["validation"]) == sorted(names["all"])
    assert 0 < len(names["validation"]) < len(names["train"])


def test_generated_narratives_are_those_of_training(bare: Path, capsys):
    (rows,) = open_narratives_of([DataSpec(bare, "train")], "validation").values()
    assert not capsys.readouterr().err  # progress is shown on terminals only
    config = replace(compact(), validation_images=1000)
    (trained,) = validation_narratives([Source(bare, "train")], config).values()
    assert [(n.index, n.caption, n.phrases) for n in rows] == [
        (n.index, n.caption, n.phrases) for n in trained
    ]
    assert not validation_narratives([Source(bare, "train")], replace(config, validation_images=0))
    again, everything = (
        next(iter(open_narratives_of([DataSpec(bare, "train")], part).values())).fingerprint
        for part in ("validation", "all")
    )
    assert again == rows.fingerprint != everything  # of the narratives themselves


def test_part_of_the_command_line_and_a_part_without_images(scenes: Path, tmp_path: Path, capsys):
    root = write_data(tmp_path / "one")  # one image, 7.jpg
    part = "train" if held_out(image_named("7"), 0.1) else "validation"
    with pytest.raises(InputError, match=f"no image of one:val2017 is in the part {part}"):
        open_narratives_of([DataSpec(root, "val2017")], part)
    predictions, out = tmp_path / "none.jsonl", tmp_path / "run.json"
    predictions.write_text("")
    options = ["--predictions", str(predictions), "--part", "validation", "-o", str(out)]
    assert main(["evaluate", "--data", f"{scenes}:train", *options]) == 0
    report = json.loads(out.read_text())
    (rows,) = open_narratives_of([DataSpec(scenes, "train")], "validation").values()
    assert report["part"] == "validation" and report["data"][0]["narratives"] == len(rows)
    assert "on the validation images of " in capsys.readouterr().out


def image_named(stem: str) -> PanopticImage:
    return PanopticImage(1, Path(f"{stem}.jpg"), Path(), 1, 1, ())
