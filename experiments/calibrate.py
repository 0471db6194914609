"""Fit presence and score of a model on held-out images, and report how well they are calibrated.

python -m experiments.calibrate --model DIR --data-root PHOTOS --rows ROWS.jsonl [--images 200] [--write]

One pass over the images, on the runtime and in the precision that `ppmn.load` chooses, writes a line per
phrase to ROWS.jsonl; if the file is there, it is read instead. The phrases are those of narratives, names
of categories and what people wrote (in the image), and random, nearest and swapped ones (not in the image,
see measure_absent.py). Presence is a logistic regression on MAP_FEATURES, the network's own logit among
them; with its limit 5 % of the phrases that are in the image have no mask. The score is a logistic
regression of the IoU on the same features, over the phrases that are in the image and whose mask is shown;
its error is reported for them, and with the masks that absent phrases keep, whose IoU is 0.

Errors are cross-fitted: images are halved by a second hash of their names, and each half is measured with the
fit of the other. --write puts the fit on all images into DIR/config.json.
"""

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import probes as shared
from experiments.answer_rows import AnswerRow, collect, people_probes, read_rows
from experiments.calibration_figure import draw_figure
from experiments.measure_absent import LOST, Score, make_probes, summary
from ppmn.config import CalibrationConfig, ModelConfig
from ppmn.files import replacing
from ppmn.grounding.calibration import expected_iou, logistic, presence_probability
from ppmn.model.folder import CONFIG_FILE, model_folder

BINS = 15
WITH_ABSENT = "score, with absent phrases"
_RIDGE = 1e-4  # on standardised features, per phrase
Values = NDArray[np.float64]


def half(image: str) -> int:
    """0 or 1, by a second hash of an image's name; the first holds out the images of the validation tenth."""
    return hashlib.sha256(f"calibration {image}".encode()).digest()[0] & 1


def logistic_regression(features: Values, target: Values) -> list[float]:
    """A bias and weights for targets from 0 to 1, by Newton's method with a small ridge."""
    mean, scale = features.mean(0), features.std(0)
    scale[scale < 1e-9] = np.inf  # a constant feature gets no weight
    X = np.column_stack([np.ones(len(features)), (features - mean) / scale])
    ridge = np.diag([0.0, *[_RIDGE * len(X)] * features.shape[1]])
    weights = np.zeros(X.shape[1])
    for _ in range(50):
        p = logistic(X @ weights)
        gradient = X.T @ (p - target) + ridge @ weights
        step = np.linalg.solve((X.T * (p * (1 - p))) @ X + ridge + 1e-9 * np.eye(len(weights)), gradient)
        weights -= step
        if np.abs(step).max() < 1e-8:
            break
    own = weights[1:] / scale
    return [float(weights[0] - own @ mean), *map(float, own)]


def fit(rows: Sequence[AnswerRow]) -> CalibrationConfig:
    """The calibration that fits these rows."""
    config = CalibrationConfig()
    if rows[0].presence is not None:
        features = np.array([row.features for row in rows])
        present = np.array([row.present for row in rows])
        weights = logistic_regression(features, present.astype(np.float64))
        config = replace(config, presence_weights=tuple(weights))
        values = presence_probability(features, config)
        values[[row.empty for row in rows]] = 0.0  # lost already, as no response is above the threshold
        config = replace(config, min_presence=float(np.quantile(values[present], LOST)))
    kept = [row for row in shown(rows, config) if row.present]  # of absent phrases presence speaks
    weights = logistic_regression(np.array([r.features for r in kept]), np.array([r.iou for r in kept]))
    return replace(config, score_weights=tuple(weights))


def shown(rows: Sequence[AnswerRow], config: CalibrationConfig) -> list[AnswerRow]:
    """The rows whose mask is neither empty nor withheld."""
    presence = predicted_presence(rows, config)
    absent = np.zeros(len(rows), bool) if presence is None else presence < config.min_presence
    return [row for row, gone in zip(rows, absent, strict=True) if not gone and not row.empty]


def predicted_presence(rows: Sequence[AnswerRow], config: CalibrationConfig) -> Values | None:
    """The probability of each row; None where the model does not say."""
    if not rows or rows[0].presence is None:
        return None
    return presence_probability(np.array([row.features for row in rows]), config)


def reliability(predicted: Values, observed: Values) -> dict[str, Any]:
    """Expected calibration error over 15 equal-width bins, with the mean of each bin."""
    member = np.minimum((predicted * BINS).astype(int), BINS - 1)
    counts = np.bincount(member, minlength=BINS)
    means = [np.bincount(member, v, BINS) / np.maximum(counts, 1) for v in (predicted, observed)]
    error = float((counts * np.abs(means[0] - means[1])).sum() / max(counts.sum(), 1))
    bins = [
        {"count": int(n), "predicted": float(p), "observed": float(o)}
        for n, p, o in zip(counts, *means, strict=True)
        if n
    ]
    return {"error": error, "count": int(counts.sum()), "bins": bins}


def cross_fitted(rows: Sequence[AnswerRow]) -> dict[str, Any]:
    """Calibration of both halves, each measured with the fit of the other, and of all together."""
    halves = [[row for row in rows if half(row.image) == side] for side in (0, 1)]
    scores: list[tuple[Values, Values]] = []
    with_absent: list[tuple[Values, Values]] = []
    presences: list[tuple[Values, Values]] = []
    answers: list[Score] = []
    if not all(halves):
        raise SystemExit("all images are in one half: take more of them with --images")
    for mine, others in (halves, halves[::-1]):
        config = fit(others)
        kept = shown(mine, config)
        values = expected_iou(np.array([row.features for row in kept]), config)
        ious, there = np.array([row.iou for row in kept]), np.array([row.present for row in kept])
        scores.append((values[there], ious[there]))
        with_absent.append((values, ious))
        presence = predicted_presence(mine, config)
        if presence is not None:
            present = np.array([row.present for row in mine])
            presences.append((presence, present.astype(np.float64)))
            empty = np.array([row.empty for row in mine])
            gone, sure = empty | (presence < config.min_presence), np.where(empty, 0.0, presence)
            answers += [Score(r.row, Path(r.image), *pair) for r, *pair in zip(mine, sure, gone, strict=True)]
    measured = {"score": scores, WITH_ABSENT: with_absent, "presence": presences}
    found = {name: _errors(pairs) for name, pairs in measured.items() if pairs}
    return found | {"absent": absent_phrases(answers)}


def _errors(pairs: Sequence[tuple[Values, Values]]) -> dict[str, Any]:
    predicted, observed = (np.concatenate(values) for values in zip(*pairs, strict=True))
    together = reliability(predicted, observed)
    correlation = float(np.corrcoef(predicted, observed)[0, 1])
    return together | {"halves": [reliability(*pair)["error"] for pair in pairs], "correlation": correlation}


def absent_phrases(answers: Sequence[Score]) -> dict[str, Any]:
    """Absent phrases caught against present ones lost, for every kind of absent phrases and for all."""
    kinds = {"random": "random", "nearest": "random", "swapped": "random"}
    pooled = [replace(a, row=kinds.get(a.row, "present")) for a in answers]
    return {"all": summary(pooled)["random"], **summary(answers)} if answers else {}


def write_calibration(folder: Path, calibration: CalibrationConfig) -> None:
    """Put the calibration into the configuration of a model folder."""
    config = ModelConfig.load(folder / CONFIG_FILE)
    with replacing(folder / CONFIG_FILE) as part:
        replace(config, calibration=calibration).save(part)


def report(found: dict[str, Any]) -> str:
    """The errors, and what presence does for absent phrases, as tables."""
    rows = [
        [
            name,
            f"{found[name]['error']:.3f}",
            " and ".join(f"{error:.3f}" for error in found[name]["halves"]),
            f"{found[name]['correlation']:.2f}",
            f"{found[name]['count']:,}",
        ]
        for name in ("score", WITH_ABSENT, "presence")
        if name in found
    ]
    absent = [
        [kind, shared.cell(r["caught"]), f"{r['default']['caught']:.1f} %, {r['default']['lost']:.1f} %"]
        for kind, r in found["absent"].items()
    ]
    header = ["absent phrases", f"caught at {100 * LOST:g} % of present lost", "caught and lost by the limit"]
    text = shared.show(["", "calibration error", "of the halves", "correlation", "phrases"], rows)
    return text + ("\n\n" + shared.show(header, absent) if absent else "")


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--phrases", type=int, default=1000, help="at least so many absent categories")
        parser.add_argument("--rows", type=Path, required=True, help="file of the rows; read if it is there")
        parser.add_argument("--processes", type=int, default=2, help="that share the images (default: 2)")
        parser.add_argument("--figure", type=Path, help="draw the reliability diagrams and the curve here")
        parser.add_argument("--write", action="store_true", help="write the fit to the model's config.json")

    args = shared.parse_arguments(__doc__, add)
    (name,) = args.model
    if not args.rows.is_file():
        people = people_probes(args.data_root, (args.images or 300) // 10, args.seed)
        collect(name, [*make_probes(args), *people], args.rows, processes=args.processes)
    rows = read_rows(args.rows)
    found, calibration = cross_fitted(rows), fit(rows)
    print(report(found))
    print(f"fit: {calibration}")
    shared.write(args.json, {"cross_fitted": found, "calibration": asdict(calibration)})
    if args.figure:
        draw_figure(found, found["absent"], args.figure)
    if args.write:
        write_calibration(model_folder(name), calibration)


if __name__ == "__main__":
    main()
