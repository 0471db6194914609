"""Train and measure every row of Table 1 under one budget, and print the table.

python -m experiments.table1 --data ROOT[:SPLIT][=WEIGHT] ... --test ROOT[:SPLIT] --out DIR [--rows ...]

Every row is trained on the same images, with the same generated narratives and the same number of image
passes, both encoders frozen. Passes of stage one count: it gets half of them, stage two the other half; rows
of `twice` give each stage the whole budget and train stage two on crossed proposals. Thresholds are chosen on
the images held out from training; the test data is read once per row. Whatever is finished is skipped, what
was stopped continues.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.table1_choices import HeldOut, anchor_shapes, changed, choose_settings, cross_proposals
from ppmn.baselines.recipes import BASELINE_PRESETS
from ppmn.cli import show_log
from ppmn.cli.arguments import parse_size, parse_spec
from ppmn.config import TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.evaluation.comparison import RowKind, TableRow, comparison_table, matching_outcomes
from ppmn.evaluation.cost import answer_cost, training_cost
from ppmn.evaluation.evaluate import evaluate, open_narratives_of
from ppmn.evaluation.figures import curves
from ppmn.evaluation.predictions import Answers
from ppmn.evaluation.proposal_report import measure_proposals
from ppmn.evaluation.region_rows import (
    Oracle,
    oracle_answers,
    own_answers,
    snapped_answers,
    true_segment_answers,
    truth_flag_answers,
)
from ppmn.evaluation.report import build_report, read_report, write_report
from ppmn.files import make_folder, replacing, write_json
from ppmn.grounding.grounder import Grounder, load
from ppmn.model.folder import MODEL_FILE
from ppmn.presets import PRESETS, override
from ppmn.training.sources import open_training_sources
from ppmn.training.trainer import train
from ppmn.training.validation import validation_narratives

_log = logging.getLogger("ppmn.table1")
CHOSEN = "chosen.json"  # in a run's folder: what was chosen on held-out images
TIMED = 8  # images on which the time of an answer is taken


class Table:
    """The runs and reports in one folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out
        self.specs: list[DataSpec] = [parse_spec(text) for text in args.data]
        self.test = open_narratives_of([parse_spec(text) for text in args.test])
        self.rows: list[TableRow] = []
        self.notes: list[str] = []

    def config(self, preset: str, *changes: str, share: float = 1.0) -> TrainConfig:
        """A preset under the table's budget, of which `share` is used."""
        args = self.args
        config = {**PRESETS, **BASELINE_PRESETS}[preset]()
        sides = (f"model.short_side={args.sides[0]}", f"model.long_side={args.sides[1]}")
        run = (f"precision={args.precision}", f"seed={args.seed}", f"batch_size={args.batch_size}")
        epochs = max(1, round(args.epochs * share))
        for text in (*sides, *run, f"epochs={epochs}", f"evaluate_every={epochs}", *args.set, *changes):
            name, _, value = text.partition("=")
            config = override(config, name, value)
        return config

    def trained(
        self, name: str, config: TrainConfig, *, init: Path | None = None, cache: str = "cache"
    ) -> Path:
        """The folder of a finished run; one that was stopped continues."""
        folder: Path = self.out / "runs" / name
        if not (folder / MODEL_FILE).is_file():
            _log.info(f"training {name}")
            where = self.args.cache if cache == "cache" and self.args.cache else self.out / cache
            train(config, self.specs, folder, init=init, cache=where)
        if not (folder / CHOSEN).is_file():
            write_json(folder / CHOSEN, choose_settings(folder, self.held_out(config)))
        return folder

    def held_out(self, config: TrainConfig) -> HeldOut:
        """Narratives of the images held out from training."""
        return validation_narratives(open_training_sources(self.specs), config)

    def measured(
        self,
        name: str,
        grounder: Grounder,
        answers: Answers,
        runs: Sequence[Path] = (),
        kind: RowKind = "system",
    ) -> None:
        """Add a row; the test data is read only if its report is not there yet."""
        file = self.out / "reports" / f"{name.replace(' ', '_')}.json"
        if not file.is_file():
            _log.info(f"measuring {name}")
            found = evaluate(answers, self.test)
            report = build_report(found.metric, name, grounder.threshold, self.test)
            if runs:
                some = [n for source in self.test.values() for n in source[:TIMED]][:TIMED]
                report["cost"] = answer_cost(grounder, some) | training_cost(runs)
            write_report(report, file)
        self.rows.append(TableRow(name, read_report(file), kind))

    def ppmn(self) -> Path:
        """Row A, and PPMN without LCPA."""
        whole = self.trained("ppmn", self.config("compact"))
        grounder = load(whole)
        self.measured("PPMN", grounder, own_answers(grounder), [whole])
        bare = self.trained("ppmn-without-lcpa", self.config("compact", "model.pixels=0"))
        grounder = load(bare)
        self.measured("PPMN without LCPA", grounder, own_answers(grounder), [bare])
        return whole

    def two_stage(self, ppmn: Path) -> None:
        """Rows B, C and F: three rules for plurals, three oracles, PPMN's responses on the regions."""
        one = self.trained("stage-one-half", self.config("two-stage-small", share=0.5))
        matching = replace(self.config("two-stage-small", share=0.5), model=self.stage_two(one).model)
        two = self.trained("stage-two-half", matching, init=one, cache="cache-regions-half")
        self.rules("two-stage", two, [one, two])
        self.oracles("stage one", one)
        self.note_outcomes("two-stage, plurals by text", "oracle of stage one")
        grounder = load(two)
        self.measured("PPMN on regions", grounder, snapped_answers(load(ppmn), grounder))

    def twice(self) -> None:
        """Both stages with the whole budget each, stage two on crossed proposals."""
        one = self.trained("stage-one", self.config("two-stage-small"))
        halves = [
            self.trained(f"stage-one-{fold}", self.config("two-stage-small", f"model.fold={fold}"))
            for fold in ("first", "second")
        ]
        config = self.stage_two(one, "model.crossed=halves")
        cross_proposals(config, self.specs, one, halves, self.out / "cache-regions-crossed")
        two = self.trained("stage-two-crossed", config, init=one, cache="cache-regions-crossed")
        self.rules("two-stage twice, crossed", two, [one, *halves, two])
        uncrossed = self.trained("stage-two", self.stage_two(one), init=one, cache="cache-regions")
        self.rules("two-stage twice", uncrossed, [one, uncrossed])
        self.oracles("stage one twice", one)
        self.note_outcomes("two-stage twice, plurals by text", "oracle of stage one twice")
        report = measure_proposals(load(one), self.test, self.out / "proposals.png")
        (self.out / "proposals.md").write_text(report.table(), encoding="utf-8")

    def stage_two(self, one: Path, *changes: str) -> TrainConfig:
        """The configuration of stage two on a finished stage one."""
        model = load(one).model.config
        config = replace(self.config("two-stage-small"), model=model)
        for text in ("model.stage=two", *changes):
            name, _, value = text.partition("=")
            config = override(config, name, value)
        return config

    def rules(self, name: str, folder: Path, runs: Sequence[Path]) -> None:
        """A two-stage system by its three rules for plurals."""
        grounder = load(folder)
        self.measured(f"{name}, plurals by text", grounder, own_answers(grounder), runs)
        self.measured(f"{name}, plurals by truth", grounder, truth_flag_answers(grounder))
        grounder = load(folder)
        grounder.model.config = changed(grounder.model.config, plural_rule="all")
        self.measured(f"{name}, one rule", grounder, own_answers(grounder))

    def oracles(self, name: str, folder: Path) -> None:
        """Rows C, C' and C''."""
        grounder = load(folder)
        self.measured(f"oracle of {name}", grounder, oracle_answers(grounder), kind="oracle")
        others: tuple[Oracle, ...] = ("union", "overlapping")
        for kind in others:
            answers = oracle_answers(grounder, kind)
            self.measured(f"oracle of {name}, {kind}", grounder, answers, kind="oracle")

    def note_outcomes(self, system: str, oracle: str) -> None:
        """How many phrases the proposals lose, and how many the matching."""
        reports = {row.name: row.report for row in self.rows}
        shares = matching_outcomes(reports[system], reports[oracle])
        self.notes.append(
            f"{system}: {', '.join(f'{name} {share:.1f} %' for name, share in shares.items())}."
        )

    def true_segments(self, ppmn: Path) -> None:
        """Rows D and E: matching of pooled regions against responses, with the annotated segments."""
        one = self.trained("stage-one-half", self.config("two-stage-small", share=0.5))
        config = self.stage_two(one, "model.true_segments=true")
        folder = self.trained("stage-two-true", config, init=one)
        grounder = load(folder)
        self.measured("true segments, matched", grounder, true_segment_answers(grounder), [one, folder])
        grounder = load(ppmn)
        self.measured("true segments, PPMN", grounder, snapped_answers(grounder))

    def objects(self) -> None:
        """The other stage one: "the object here" of a model that points, drawn on a grid."""
        model = load(self.args.pointing).model.config
        preset = self.config("two-stage-small")
        shared = {
            name: getattr(model, name) for name in ("image", "text", "short_side", "long_side", "pointing")
        }
        config = replace(preset, model=changed(preset.model, stage="two", min_score=0.0, **shared))
        folder = self.trained("stage-two-objects", config, init=self.args.pointing, cache="cache-objects")
        self.rules("two-stage on objects", folder, [folder])
        self.oracles("objects", folder)

    def mcn(self) -> None:
        """MCN and its ablations."""
        anchors = f"model.anchors={anchor_shapes(self.specs, self.config('mcn-small'))}"
        folder = self.trained("mcn", self.config("mcn-small", anchors))
        grounder = load(folder)
        self.measured("MCN", grounder, own_answers(grounder), [folder], kind="things")
        for kind in ("none", "hard"):
            other = load(folder)
            other.model.config = changed(other.model.config, suppression=kind)
            self.measured(f"MCN, suppression {kind}", other, own_answers(other), kind="things")
        ablations = {
            "without boxes": ("model.box_branch=false", "model.consistency=false"),
            "without consistency": ("model.consistency=false",),
            "phrase in its caption": ("model.context=caption",),
        }
        for name, changes in ablations.items():
            folder = self.trained(
                f"mcn-{name.replace(' ', '-')}", self.config("mcn-small", anchors, *changes)
            )
            grounder = load(folder)
            self.measured(f"MCN, {name}", grounder, own_answers(grounder), [folder], kind="things")

    def shipped(self) -> None:
        """The model that ships, trained otherwise."""
        grounder = load("compact")
        self.measured("compact", grounder, own_answers(grounder), kind="below")

    def write(self) -> str:
        """The table and its curves; rows of systems first, those trained otherwise last."""
        order = ("system", "things", "oracle", "below")
        rows = sorted(self.rows, key=lambda row: order.index(row.kind))
        text = "\n".join([comparison_table(rows), *self.notes, ""])
        with replacing(self.out / "table1.md") as part:
            part.write_text(text, encoding="utf-8")
        shown = [row for row in rows if row.kind != "oracle"][:8]
        curves([(row.name, row.report) for row in shown], self.out / "table1.png")
        return text


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, train and measure the rows that are asked for, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", action="append", required=True, metavar="ROOT[:SPLIT][=WEIGHT]")
    add("--test", action="append", required=True, metavar="ROOT[:SPLIT]")
    add("--out", type=Path, required=True)
    add("--cache", type=Path, help="image features that other runs of this encoder and size share")
    add("--rows", nargs="+", default=["two_stage", "true_segments", "mcn", "shipped"])
    add("--epochs", type=int, default=4)
    add("--batch-size", type=int, default=8)
    add("--sides", type=parse_size, default=(336, 448), metavar="HxW")
    add("--precision", choices=("float32", "bfloat16"), default="float32")
    add("--pointing", type=Path, help="a model that points, for the row `objects`")
    add("--seed", type=int, default=0)
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field in every run")
    args = parser.parse_args(argv)
    show_log()
    make_folder(args.out / "reports")
    table = Table(args)
    ppmn = table.ppmn()
    needs_ppmn = ("two_stage", "true_segments")
    for row in args.rows:
        step: Callable[..., None] = getattr(table, row)
        step(ppmn) if row in needs_ppmn else step()
    print(table.write())


if __name__ == "__main__":
    main()
