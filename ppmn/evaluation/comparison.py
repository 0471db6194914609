"""Table 1: several systems measured on the same phrases, side by side, with paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ppmn.errors import InputError
from ppmn.evaluation.metrics import SPLITS, Interval
from ppmn.evaluation.report import EvaluationReport, compare_reports

HIT = 0.5  # IoU above which a phrase, or a segment, counts as found
MARK = "†"  # of rows that read the annotation
RowKind = Literal["system", "things", "oracle", "below"]
_COLUMNS = (*SPLITS, "things_alone", "things_among")
_COSTS = {
    "parameters": ("parameters, M", 1e6, 2),
    "samples": ("samples", 1, 0),
    "core_hours": ("core-hours", 1, 2),
    "ms_image": ("core-ms per image", 1, 0),
    "ms_caption": ("core-ms per caption", 1, 0),
}
_OF_STUFF = ("overall", "stuff", "singulars", "plurals")


@dataclass(frozen=True)
class TableRow:
    """One row: a system, one for things only, an oracle, or one that was trained otherwise.

    `annotated` marks a row that reads the annotation of the images it is measured on, as every oracle does.
    """

    name: str
    report: EvaluationReport
    kind: RowKind = "system"
    annotated: bool = False

    @property
    def title(self) -> str:
        """The name, marked if the row reads the annotation."""
        return f"{self.name} {MARK}" if self.annotated or self.kind == "oracle" else self.name

    def value(self, split: str) -> float | None:
        """Average Recall of a split; None where it says nothing about the system."""
        if self.kind == "things" and split in _OF_STUFF:
            return None
        found: float | None = self.report.get(split)
        return found


def comparison_table(rows: Sequence[TableRow]) -> str:
    """The rows as Markdown: Average Recall with intervals, costs, and differences to the first row.

    Raises:
        InputError: The rows were measured by different protocols or on different data.
    """
    _check(rows)
    first = rows[0].report
    data = ", ".join(d["source"] for d in first["data"])
    marked = any(row.title != row.name for row in rows)
    part = "" if first.get("part", "all") == "all" else f" ({first['part']} images)"
    return "\n".join(
        [
            f"Average Recall, protocol {first['protocol']}, on {data}{part}.",
            "In brackets 95 % intervals by bootstrap over images.",
            *([f"{MARK} reads the annotation of the images that are measured."] if marked else []),
            *[f"**{warning}**" for warning in warnings(rows)],
            "",
            *_recalls(rows),
            "",
            *_differences(rows),
            "",
            *_costs(rows),
            "",
        ]
    )


def warnings(rows: Sequence[TableRow]) -> list[str]:
    """What forbids a conclusion: an oracle whose limit is under the result of the first row."""
    reference = rows[0]
    return [
        f"The limit of {row.name} ({row.report['overall']:.1f}) is under the result of {reference.name} "
        f"({reference.report['overall']:.1f}): its proposals are too weak for a verdict on matching."
        for row in rows[1:]
        if row.kind == "oracle" and row.report["overall"] < reference.report["overall"]
    ]


def matching_outcomes(system: EvaluationReport, oracle: EvaluationReport) -> dict[str, float]:
    """Where a two-stage system loses: percentages of the phrases that both reports have.

    Args:
        system: Its report.
        oracle: The report of the best region of each segment, of the same proposals.
    """
    keys = ("source", "image", "narrative", "phrase")
    limit = {tuple(r[k] for k in keys): r["iou"] or 0.0 for r in oracle["records"]}
    counts = {"no region above IoU 0.5": 0, "there was one, another was taken": 0, "taken": 0}
    for record in system["records"]:
        best = limit.get(tuple(record[k] for k in keys))
        if best is None or record["empty"]:
            continue
        found = (record["iou"] or 0.0) > HIT
        taken = "taken" if found else "there was one, another was taken"
        counts[taken if found or best > HIT else "no region above IoU 0.5"] += 1
    total = sum(counts.values())
    if not total:
        raise InputError("the two reports have no phrase in common: they measured different data")
    return {name: 100 * count / total for name, count in counts.items()}


def _check(rows: Sequence[TableRow]) -> None:
    if len(rows) < 2:
        raise InputError(f"a comparison needs at least 2 rows, got {len(rows)}")
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        raise InputError(f"two rows have one name: {', '.join(names)}")
    for row in rows[1:]:
        for what in ("protocol", "part"):
            ours, theirs = (r.report.get(what, "all") for r in (rows[0], row))
            if ours != theirs:
                raise InputError(f"{row.name} was measured with {what} {theirs}, {names[0]} with {ours}")
        prints = [{d["fingerprint"] for d in r.report["data"]} for r in (rows[0], row)]
        if prints[0] != prints[1]:
            raise InputError(f"{row.name} and {names[0]} were measured on different data")


def _recalls(rows: Sequence[TableRow]) -> list[str]:
    lines = _heading(["", *_COLUMNS, "IoU > 0.5"])
    phrases = rows[0].report["phrases"]
    for place, row in enumerate(rows):
        if row.kind == "below" and (place == 0 or rows[place - 1].kind != "below"):
            lines.append(_line(["*trained otherwise:*"] + [""] * (len(_COLUMNS) + 1)))
        cells = []
        for split in _COLUMNS:
            value, interval = row.value(split), row.report["interval"].get(split)
            cells.append("-" if value is None else f"{value:.1f} {_bounds(interval)}")
        accuracy = row.report.get("accuracy_50")
        cells.append("-" if accuracy is None or row.kind == "things" else f"{accuracy:.1f}")
        lines.append(_line([row.title, *cells]))
    return [*lines, _line(["phrases", *(f"{phrases.get(s, 0):,}" for s in _COLUMNS), ""])]


def _differences(rows: Sequence[TableRow]) -> list[str]:
    lines = [f"Difference to {rows[0].name}, paired by phrase:", "", *_heading(["", *_COLUMNS])]
    for row in rows[1:]:
        difference, _ = compare_reports(row.report, rows[0].report)
        shown = [None if row.value(s) is None else difference.get(s) for s in _COLUMNS]
        lines.append(_line([row.title, *(_signed(i) for i in shown)]))
    return lines


def _costs(rows: Sequence[TableRow]) -> list[str]:
    lines = _heading(["", *(title for title, _, _ in _COSTS.values())])
    for row in rows:
        cost: dict[str, Any] = row.report.get("cost") or {}
        cells = [
            "-" if cost.get(name) is None else f"{cost[name] / unit:,.{digits}f}"
            for name, (_, unit, digits) in _COSTS.items()
        ]
        lines.append(_line([row.title, *cells]))
    return lines


def _heading(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|---" * len(cells) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bounds(interval: Sequence[float] | None) -> str:
    return f"[{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""


def _signed(interval: Interval | None) -> str:
    return f"{interval.mean:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]" if interval else "-"
