"""`ppmn compare`: what it prints and draws, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from ppmn.cli import main
from ppmn.errors import InputError
from ppmn.evaluation.comparison import matching_outcomes
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
