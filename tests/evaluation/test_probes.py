"""The measurements in experiments/ on made-up data: which probes they ask, and how answers are counted."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.models import small_ppmn
from support.rectangles import CATEGORIES, CLOSE, DOGS, HELD_OUT, TRAINED, write_source

import ppmn
from experiments import measure_absent, measure_left_right, measure_words
from experiments.measure_absent import Score, summary, swapped_probes
from ppmn.data.narratives import AnnotatedPhrase, Narrative
from ppmn.data.panoptic import PanopticImage, Segment
from ppmn.grounding.grounder import Grounder


@pytest.fixture
def photos(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One source in the place of all, and a small random model in the place of the included one."""
    grounder = Grounder(small_ppmn(text), device="cpu", name="random")
    monkeypatch.setattr(ppmn, "load", lambda name, **_: grounder)
    for module, name in ((measure_left_right, "SOURCES"), (measure_absent, "SOURCES")):
        monkeypatch.setattr(module, name, ("one",))
    monkeypatch.setattr(measure_words, "COMPLETE", ("one",))
    monkeypatch.setattr(measure_words, "BY_PEOPLE", ("one",))
    write_source(tmp_path / "one", [DOGS, CLOSE, DOGS, CLOSE, DOGS, DOGS], [*HELD_OUT, *TRAINED])
    return tmp_path


def run(module: Any, photos: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    out = photos / "figures.json"
    fixed = ["--model", "random", "--data-root", str(photos), "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["measure", *fixed, *options])
    module.main()
    return json.loads(out.read_text())


def test_left_and_right_of_two_that_are_apart(photos, monkeypatch, capsys):
    found = run(measure_left_right, photos, monkeypatch)["models"]["random"]
    assert found["inside"]["pairs"] == found["outside"]["pairs"] == 2  # not the close ones, nor in training
    assert found["inside"]["each"]["count"] == 4
    assert "| random | inside |" in capsys.readouterr().out


def test_a_model_that_knows_left_and_right_finds_both(photos, monkeypatch):
    def answer(_: Any, probes: Any) -> list[float]:
        return [float((p.segment_ids == (1,)) == ("left" in p.caption)) for p in probes]

    monkeypatch.setattr(measure_left_right.shared, "measure", answer)
    found = run(measure_left_right, photos, monkeypatch)["models"]["random"]
    assert [found[w][k]["percent"] for w in ("inside", "outside") for k in ("each", "both")] == [100] * 4


def test_absent_phrases_are_absent(photos, monkeypatch):
    asked = []
    monkeypatch.setattr(
        measure_absent,
        "score",
        lambda grounder, probes: asked.extend(probes) or [Score(p.row, p.image.file, 0.5) for p in probes],
    )
    found = run(measure_absent, photos, monkeypatch, "--phrases", "8")["models"]["random"]
    assert found["categories"]["caught"]["count"] == 8 and found["random"]["caught"]["count"] == 4
    assert found["categories"]["caught"]["percent"] == 0  # all scores are equal
    for probe in asked:
        here = {CATEGORIES[s.category_id - 1] for s in probe.image.segments}
        if probe.row in ("random", "nearest"):
            assert probe.caption not in here
        if probe.row == "present":
            assert probe.caption in here
    assert {p.row for p in asked} - {"swapped"} == {"random", "nearest", "present", "own"}


def test_swapped_captions_ask_only_for_what_the_other_image_lacks():
    def narrative(name: str, categories: dict[int, int], *phrases: tuple[int, ...]) -> Narrative:
        segments = tuple(Segment(id, category, 4, (0, 0, 2, 2)) for id, category in categories.items())
        image = PanopticImage(1, Path(name), Path(name), 4, 4, segments)
        return Narrative(image, 0, name, tuple(AnnotatedPhrase(0, 1, ids, True) for ids in phrases))

    dogs, cats = narrative("dogs", {1: 7, 2: 8}, (1,), (2,)), narrative("cats", {1: 8}, (1,))
    found = [(probe.row, probe.caption, probe.image.file.name) for probe in swapped_probes([dogs, cats])]
    assert found.count(("swapped", "dogs", "cats")) == 1  # of 7; both images have 8
    assert [row for row, _, _ in found] == ["own", "swapped", "own", "own"]


def test_absent_phrases_from_end_to_end(photos, monkeypatch):
    first, again = (run(measure_absent, photos, monkeypatch, "--phrases", "8") for _ in range(2))
    assert first == again
    curve = first["models"]["random"]["categories"]["curve"]
    assert len(curve) == 101 and curve[0]["lost"] == 0
    assert [c["caught"] for c in curve] == sorted(c["caught"] for c in curve)


def test_caught_at_five_percent_lost():
    present = [Score("present", Path(str(n)), n / 100) for n in range(100)]
    absent = [Score("random", Path(str(n)), value) for n, value in enumerate((0.0, 0.04, 0.05, 0.9))]
    row = summary([*present, *absent])["random"]
    assert row["threshold"] == 0.05 and row["caught"]["percent"] == 50


def test_words_singular_plural_and_by_people(photos, monkeypatch, capsys):
    narratives = photos / "narratives.txt"
    narratives.write_text(
        "Two dogs and a cat. A dog beside a cat and an aardvark. A dog.\nA zeppelin, a bus."
    )
    options = ["--narratives", str(narratives)]
    found = run(measure_words, photos, monkeypatch, *options)["models"]["random"]
    counts = {noun: {c: v["count"] for c, v in row.items()} for noun, row in found.items()}
    assert counts["dog"] == {"plural": 4, "people's phrases": 8}
    assert counts["cat"] == {"singular": 2} and counts["bus"] == {"singular": 2}
    assert "aardvark" not in counts and next(iter(counts)) == "dog"
    assert "| dog | - |" in capsys.readouterr().out
