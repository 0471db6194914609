"""`ppmn compare`: what it prints and draws, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from ppmn.cli import main
from ppmn.errors import InputError
from ppmn.evaluation.comparison import TableRow, comparison_table, matching_outcomes
from ppmn.evaluation.cost import step_seconds, training_cost
from ppmn.evaluation.metrics import AverageRecall, PhraseKey
from ppmn.evaluation.report import build_report, read_report, write_report


def report(file: Path, shift: int, **changes: object) -> Path:
    """Twelve phrases of six images, each a mask that is moved by some columns."""
    metric = AverageRecall()
    truth = np.zeros((8, 16), bool)
    truth[:, :8] = True
    for number in range(12):
        mask = np.roll(truth, shift + number % 3, axis=1)
        kind = "things_alone" if number % 2 else None
        key = PhraseKey("data:val", number // 2, 0, number % 2)
        metric.update(key, mask, truth, thing=bool(number % 2), plural=number % 4 == 0, instances=kind)
    content = build_report(metric, file.stem, 0.5, {})
    data = [{"source": "data:val", "fingerprint": "one", "narratives": 6}]
    write_report(content | {"data": data} | changes, file)
    return file


def test_table_has_rows_differences_and_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = {"parameters": 2_500_000, "samples": 1200, "core_hours": 0.5, "ms_image": 300, "ms_caption": 20}
    ours = report(tmp_path / "ours.json", 0, cost=cost)
    worse, limit = report(tmp_path / "worse.json", 2), report(tmp_path / "limit.json", 1)
    out, picture = tmp_path / "table.md", tmp_path / "table.png"
    rows = [f"PPMN={ours}", f"two-stage={worse}"]
    others = ["--things", f"MCN={worse}", "--oracle", f"oracle={limit}", "--below", f"shipped={ours}"]
    assert main(["compare", *rows, *others, "-o", str(out), "--curves", str(picture)]) == 0
    text = capsys.readouterr().out
    assert text.strip() == out.read_text().strip()
    assert picture.stat().st_size > 10_000
    lines = text.splitlines()
    assert "| PPMN | 2.50 | 1,200 | 0.50 | 300 | 20 |" in lines
    (mcn, _, _) = [line for line in lines if line.startswith("| MCN |")]
    assert mcn.split("|")[2].strip() == "-"  # a row for things says nothing overall
    assert any(line.startswith("| two-stage | -") for line in lines)  # the difference
    assert "The limit of oracle" in text
    assert "too weak for a verdict" in text
    assert text.index("trained otherwise") < text.index("| shipped |")


def test_rows_that_read_the_annotation_are_marked(tmp_path: Path) -> None:
    ours, theirs = (read_report(report(tmp_path / f"{n}.json", shift)) for n, shift in (("a", 0), ("b", 1)))
    rows = [TableRow("PPMN", ours), TableRow("oracle", theirs, "oracle")]
    rows += [TableRow("by truth", theirs, annotated=True), TableRow("by text", theirs)]
    lines = comparison_table(rows).splitlines()
    assert "† reads the annotation of the images that are measured." in lines
    assert sum(line.startswith(("| oracle † |", "| by truth † |")) for line in lines) == 6  # in three tables
    assert sum(line.startswith(("| PPMN |", "| by text |")) for line in lines) == 5  # PPMN has no difference
    assert "†" not in comparison_table([rows[0], rows[3]])


def test_of_a_row_for_things_only_things_are_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    labels: list[str] = []
    plot = Axes.plot

    def remember(axes: Axes, *args: Any, label: str, **kwargs: Any) -> Any:
        labels.append(label)
        return plot(axes, *args, label=label, **kwargs)

    monkeypatch.setattr(Axes, "plot", remember)
    ours = report(tmp_path / "ours.json", 0)
    rows = [f"PPMN={ours}", "--things", f"MCN={ours}", "--curves", str(tmp_path / "curves.png")]
    assert main(["compare", *rows]) == 0
    assert [label.split("  ")[0] for label in labels if label.startswith("MCN")] == ["MCN (things)"]
    assert sum(label.startswith("PPMN") for label in labels) == 5


def test_cost_of_a_step_is_that_of_the_last_epoch(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(
        json.dumps({"processes": 2, "config": {"batch_size": 8, "per_process": False}})
    )
    steps = [(0, 9.0), (0, 9.0), (1, 1.0), (1, 4.0), (1, 2.0)]
    lines = [{"epoch": epoch, "core_seconds": seconds} for epoch, seconds in steps]
    text = "\n".join(json.dumps(line) for line in [*lines, {"epoch": 1, "validation": {}}])
    (tmp_path / "log.jsonl").write_text(text)
    assert step_seconds(tmp_path) == 2.0 * 2 / 8  # the median of both processes together, by image
    assert training_cost([tmp_path]) == {"samples": 40, "core_hours": 25.0 * 2 / 3600}


def test_outcomes_tell_what_proposals_and_matching_lose(tmp_path: Path) -> None:
    system, oracle = (read_report(report(tmp_path / f"{n}.json", shift)) for n, shift in (("b", 2), ("c", 0)))
    shares = matching_outcomes(system, oracle)
    assert sum(shares.values()) == pytest.approx(100)
    # moved by 2, 3 and 4 of 8 columns: IoU 6/10, 5/11 and 4/12; the limit is never under 0.6
    assert shares["taken"] == pytest.approx(100 / 3)
    assert shares["no region above IoU 0.5"] == 0
    swapped = matching_outcomes(read_report(report(tmp_path / "d.json", 4)), system)
    assert swapped["no region above IoU 0.5"] == pytest.approx(200 / 3)
    with pytest.raises(InputError, match="no phrase in common"):
        matching_outcomes(system, {"records": []})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": [{"source": "x", "fingerprint": "two", "narratives": 6}]}, "measured on different data"),
        ({"protocol": "ppmn2022"}, "measured with protocol ppmn2022, a with full"),
        ({"part": "validation"}, "measured with part validation, a with all"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(
    changes: dict[str, object], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = report(tmp_path / "a.json", 0), report(tmp_path / "b.json", 1, **changes)
    assert main(["compare", f"a={ours}", f"b={theirs}"]) == 2
    assert sentence in capsys.readouterr().err


def test_bad_rows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = report(tmp_path / "a.json", 0)
    for rows, sentence in (
        ([str(ours)], "a row is NAME=RUN.json"),
        ([f"a={ours}"], "at least 2 rows"),
        ([f"a={ours}", f"a={ours}"], "two rows have one name"),
        ([f"a={ours}", f"b={tmp_path / 'none.json'}"], "cannot be read"),
    ):
        assert main(["compare", *rows]) == 2
        assert sentence in capsys.readouterr().err
    assert json.loads(ours.read_text())["model"] == "a"
