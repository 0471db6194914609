"""The result of an evaluation: as JSON, as the paper's table, and compared with another run."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppmn.data.partition import SplitPart
from ppmn.errors import InputError
from ppmn.evaluation.metrics import (
    CURVE_THRESHOLDS,
    INSTANCE_SPLITS,
    PROTOCOLS,
    SPLITS,
    AverageRecall,
    Interval,
    PhraseKey,
    PhraseScore,
)
from ppmn.evaluation.selection import NarrativeSource
from ppmn.files import read_json, replacing

EvaluationReport = dict[str, Any]


def build_report(
    metric: AverageRecall,
    model: str,
    threshold: float | None,
    sources: Mapping[str, NarrativeSource],
    part: SplitPart = "all",
) -> EvaluationReport:
    """Every figure of a run, and what it was measured on. Scores are from 0 to 100."""
    scores = metric.compute()
    return {
        "protocol": scores.protocol,
        "model": model,
        "threshold": threshold,
        "part": part,
        "data": [
            {"source": source, "fingerprint": n.fingerprint, "narratives": len(n)}
            for source, n in sources.items()
        ],
        **scores.average_recall,
        "phrases": scores.phrases,
        "interval": {s: i and [i.low, i.high] for s, i in scores.interval.items()},
        "accuracy_50": scores.accuracy_50,
        "missing": scores.missing,
        "empty": scores.empty,
        "empty_found": scores.empty_found,
        "curve": {"iou": list(CURVE_THRESHOLDS), **scores.curve},
        "records": [_record(key, phrase) for key, phrase in sorted(metric.phrase_scores.items())],
    }


def write_report(content: EvaluationReport, file: Path) -> None:
    """Write a report as JSON, one line per phrase."""
    records = ",\n".join(json.dumps(record, allow_nan=False) for record in content["records"])
    head = json.dumps({k: v for k, v in content.items() if k != "records"}, indent=1, allow_nan=False)
    with replacing(file) as part:
        part.write_text(f'{head[:-2]},\n "records": [\n{records}\n]\n}}\n', encoding="utf-8")


def read_report(file: Path) -> EvaluationReport:
    """Read what `write_report` wrote."""
    content = read_json(file)
    needed = ("protocol", "model", "data", "phrases", "curve", "records", *SPLITS)
    missing = [n for n in needed if n not in content] if isinstance(content, dict) else list(needed)
    if missing or content["protocol"] not in PROTOCOLS:
        raise InputError(
            f"{file} is not a report of an evaluation: {', '.join(missing) or 'protocol'} is wrong"
        )
    return dict(content)


def compare_reports(
    ours: EvaluationReport, theirs: EvaluationReport
) -> tuple[dict[str, Interval | None], int]:
    """Paired difference ours - theirs per split, and the number of phrases that only one of them measured."""
    return _metric(ours).difference(_metric(theirs))


def format_report(content: EvaluationReport) -> str:
    """The paper's table and the splits by instances; under each value its bootstrap interval and phrases."""
    threshold = "" if content["threshold"] is None else f", threshold {content['threshold']:g}"
    part = "" if content["part"] == "all" else f"the {content['part']} images of "
    lines = [
        f"{content['model']} on {part}{', '.join(d['source'] for d in content['data'])}: "
        f"protocol {content['protocol']}{threshold}",
    ]
    for splits in (SPLITS, INSTANCE_SPLITS):
        intervals = [content["interval"][s] for s in splits]
        lines += [
            _row("", splits),
            _row("Average Recall", ["-" if content[s] is None else f"{content[s]:.1f}" for s in splits]),
            _row("95 % interval", [f"{i[0]:.1f} to {i[1]:.1f}" if i else "-" for i in intervals]),
            _row("phrases", [f"{content['phrases'][s]:,}" for s in splits]),
        ]
    if content["missing"]:
        lines.append(f"{content['missing']:,} phrases have no prediction and count as zero")
    if content["empty"]:
        where = "in no figure above" if content["protocol"] == "full" else "misses in the figures above"
        lines.append(
            f"{content['empty']:,} phrases have an empty ground truth, {where}; "
            f"{content['empty_found']:,} of them were answered with an empty mask"
        )
    return "\n".join(lines)


def format_comparison(difference: Mapping[str, Interval | None], alone: int, other: str) -> str:
    """The paired difference to another run, in points of Average Recall."""
    lines = [f"difference to {other}, paired by phrase"]
    for splits in (SPLITS, INSTANCE_SPLITS):
        values = [difference[s] for s in splits]
        lines += [
            _row("", splits),
            _row("difference", [f"{i.mean:+.1f}" if i else "-" for i in values]),
            _row("95 % interval", [f"{i.low:+.1f} to {i.high:+.1f}" if i else "-" for i in values]),
        ]
    if alone:
        lines.append(f"{alone:,} phrases are in only one of the two runs and are not compared")
    return "\n".join(lines)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<15}" + "".join(f"{cell:>15}" for cell in cells)


def _record(key: PhraseKey, phrase: PhraseScore) -> dict[str, Any]:
    iou = None if math.isnan(phrase.iou) else phrase.iou
    return key._asdict() | asdict(phrase) | {"iou": iou}


def _metric(content: EvaluationReport) -> AverageRecall:
    """The phrases of a report, with the data's fingerprint as their source: folders may have moved."""
    metric = AverageRecall(content["protocol"])
    try:
        fingerprints = {source["source"]: source["fingerprint"] for source in content["data"]}
        for r in content["records"]:
            key = PhraseKey(fingerprints[r["source"]], r["image"], r["narrative"], r["phrase"])
            iou = math.nan if r["iou"] is None else float(r["iou"])
            instances = r.get("instances")  # not in reports written before there was this split
            score = PhraseScore(iou, r["thing"], r["plural"], r["empty"], r["missing"], instances)
            metric.merge({key: score})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the report of {content['model']} has a broken record ({error!r})") from error
    return metric
