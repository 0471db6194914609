"""The runs and reports of Table 1: what is finished is kept, what was stopped continues."""

import argparse
import fcntl
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from experiments.table1_choices import HeldOut, best_of, choose_settings
from ppmn.baselines.recipes import BASELINE_PRESETS
from ppmn.cli.arguments import parse_spec
from ppmn.config import TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.evaluation.comparison import RowKind, TableRow
from ppmn.evaluation.cost import answer_cost, step_seconds, training_cost
from ppmn.evaluation.evaluate import evaluate, open_narratives_of
from ppmn.evaluation.predictions import Answers
from ppmn.evaluation.report import build_report, read_report, write_report
from ppmn.files import read_json, write_json
from ppmn.grounding.grounder import Grounder, load
from ppmn.model.folder import MODEL_FILE
from ppmn.model.method import Method
from ppmn.model.pyramid import Features
from ppmn.presets import PRESETS, override
from ppmn.training.feature_cache import content_key, encoder_fingerprint
from ppmn.training.sources import open_training_sources
from ppmn.training.trainer import train
from ppmn.training.validation import validation_narratives

_log = logging.getLogger("ppmn.table1")
CHOSEN = "chosen.json"  # in a run's folder: what was chosen on held-out images
TIMED = 8  # images on which the time of an answer is taken


class SharedFeatures:
    """The outputs of frozen encoders by encoder and image, in memory and in full precision."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Features] = {}

    def share(self, model: Method) -> None:
        """Let a model look here before its image encoder computes."""
        encoder = model.image_encoder
        compute = encoder.features
        name = encoder_fingerprint(*encoder.frozen_part())

        def features(images: Sequence[Tensor]) -> list[Features]:
            found = []
            for image in images:
                pixels = image.cpu().numpy()
                key = (name, content_key(repr(pixels.shape).encode() + pixels.tobytes()))
                if key not in self.found:
                    (self.found[key],) = compute([image])
                found.append(self.found[key])
            return found

        encoder.features = features  # type: ignore[method-assign]


class Runs:
    """Runs and reports in one folder, which several processes may fill at once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out
        self.cache: Path = args.cache or args.out / "cache"
        self.specs: list[DataSpec] = [parse_spec(text) for text in args.data]
        self.test = open_narratives_of([parse_spec(text) for text in args.test])
        self.features, self.costs = SharedFeatures(), dict[str, dict[str, float]]()
        self.rows: list[TableRow] = []
        self.notes: list[str] = []

    def config(self, preset: str, *changes: str, share: float = 1.0) -> TrainConfig:
        """A preset under the table's budget, of which `share` is used."""
        args = self.args
        config = {**PRESETS, **BASELINE_PRESETS}[preset]()
        sides = (f"model.short_side={args.sides[0]}", f"model.long_side={args.sides[1]}")
        run = (f"precision={args.precision}", f"seed={args.seed}", f"batch_size={args.batch_size}")
        epochs = max(1, round(args.epochs * share))
        # held-out images are measured by `choose_settings`, and only there
        plan = (f"epochs={epochs}", f"evaluate_every={epochs}", "validation_images=1")
        for text in (*sides, *run, *plan, *args.set, *changes):
            name, _, value = text.partition("=")
            config = override(config, name, value)
        return config

    def trained(
        self, name: str, config: TrainConfig, *, init: Path | None = None, cache: str = "cache"
    ) -> Path:
        """The folder of a finished run; one that was stopped continues, another process's is waited for."""
        folder: Path = self.out / "runs" / name
        with _held(folder.with_suffix(".lock")):
            if not (folder / MODEL_FILE).is_file():
                _log.info(f"training {name}")
                where = self.cache if cache == "cache" else self.out / cache
                train(config, self.specs, folder, init=init, cache=where)
            if not (folder / CHOSEN).is_file():
                grounder = self.opened(folder)
                write_json(folder / CHOSEN, choose_settings(grounder, folder, self.held_out))
        return folder

    def chosen(self, file: Path, choose: Callable[[], Mapping[float, float]]) -> float:
        """The best value of a setting, chosen once; `file` keeps the Average Recall of every value."""
        with _held(file.with_suffix(".lock")):
            if not file.is_file():
                write_json(file, {f"{value:g}": score for value, score in choose().items()})
            scores = {float(value): float(score) for value, score in read_json(file).items()}
        best = best_of(scores)
        _log.info(f"{file.stem}: {best:g} of {', '.join(f'{v:g}: {s:.1f}' for v, s in scores.items())}")
        return best

    def opened(self, folder: str | Path) -> Grounder:
        """A model that shares the tokens of its frozen encoder with the other rows."""
        grounder = load(folder, runtime="torch")
        self.features.share(grounder.model)
        return grounder

    @cached_property
    def held_out(self) -> HeldOut:
        """Narratives of the images held out from training, by which settings are chosen."""
        config = replace(self.config("compact"), validation_images=self.args.validation_images)
        return validation_narratives(open_training_sources(self.specs), config)

    def measured(
        self,
        name: str,
        grounder: Grounder,
        answers: Answers,
        runs: Sequence[Path] = (),
        kind: RowKind = "system",
        model: str | Path = "",
        annotated: bool = False,
    ) -> None:
        """Add a row; the test data is read only if its report is not there yet.

        The costs are those of `runs`, the last of which is the model, or those of `model`.
        """
        file = self.out / "reports" / f"{name.replace(' ', '_')}.json"
        if not file.is_file():
            _log.info(f"measuring {name}")
            started = time.perf_counter()
            found = evaluate(answers, self.test)
            report = build_report(found.metric, name, grounder.threshold, self.test)
            report["seconds"] = time.perf_counter() - started
            if runs or model:
                report["cost"] = self.cost(model or runs[-1]) | (training_cost(runs) if runs else {})
                report["step_seconds"] = {run.name: step_seconds(run) for run in runs}
            write_report(report, file)
        self.rows.append(TableRow(name, read_report(file), kind, annotated))

    def speed(self) -> list[str]:
        """How long rows took to measure, and core-seconds of a training step per image by run."""
        reports = [row.report for row in self.rows]
        steps = {run: value for r in reports for run, value in r.get("step_seconds", {}).items()}
        timed = [r["seconds"] for r in reports if "seconds" in r]
        shown = ", ".join(f"{run} {value:.3f}" for run, value in sorted(steps.items()))
        return [
            f"{len(timed)} of {len(reports)} rows have the time of their measurement: "
            f"{sum(timed) / 60:.1f} minutes in all; the goal is 10 for all rows.",
            "Core-seconds per image and training step, median of the last epoch; the goals are 0.35 for "
            f"stage one and 0.05 for stage two: {shown or 'not kept'}.",
        ]

    def cost(self, model: str | Path) -> dict[str, float]:
        """Parameters and times of a model's answers, taken once, without tokens of other rows."""
        key = str(model)
        if key not in self.costs:
            some = [n for source in self.test.values() for n in source[:TIMED]][:TIMED]
            self.costs[key] = answer_cost(load(model, runtime="torch"), some)
        return self.costs[key]


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """A lock between processes; whoever comes second waits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
