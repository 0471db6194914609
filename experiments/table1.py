"""Train and measure every row of Table 1 under one budget, and print the table.

python -m experiments.table1 --data ROOT[:SPLIT][=WEIGHT] ... --test ROOT[:SPLIT] --out DIR [--rows ...]

Every row is trained on the same images, with the same generated narratives and the same number of image
passes, both encoders frozen. Passes of stage one count: it gets half of them, stage two the other half; rows
of `twice` give each stage the whole budget and train stage two on crossed proposals. Thresholds are chosen on
the images held out from training; the test data is read once per row. Whatever is finished is skipped, what
was stopped continues; two processes may share DIR, each with its own --rows and OMP_NUM_THREADS=1. The table
is written by a process whose rows include ppmn, once they are all finished.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.table1_choices import anchor_shapes, changed, cross_proposals
from experiments.table1_runs import Runs
from ppmn.cli import show_log
from ppmn.cli.arguments import parse_size
from ppmn.config import TrainConfig
from ppmn.evaluation.comparison import comparison_table, matching_outcomes
from ppmn.evaluation.figures import curves
from ppmn.evaluation.proposal_report import measure_proposals
from ppmn.evaluation.region_rows import (
    Oracle,
    oracle_answers,
    own_answers,
    snapped_answers,
    true_segment_answers,
    truth_flag_answers,
)
from ppmn.files import make_folder, replacing
from ppmn.grounding.grounder import load
from ppmn.model.bfloat16 import bfloat16_is_faster
from ppmn.presets import override

_log = logging.getLogger("ppmn.table1")
ROWS = ["ppmn", "two_stage", "true_segments", "mcn", "shipped", "twice", "objects"]
PRECISION = "bfloat16" if bfloat16_is_faster() else "float32"


class Table(Runs):
    """The rows, by name."""

    def ppmn(self) -> None:
        """Row A, and PPMN without LCPA."""
        whole = self.whole_ppmn()
        grounder = self.opened(whole)
        self.measured("PPMN", grounder, own_answers(grounder), [whole])
        bare = self.trained("ppmn-without-lcpa", self.config("compact", "model.pixels=0"))
        grounder = self.opened(bare)
        self.measured("PPMN without LCPA", grounder, own_answers(grounder), [bare])

    def whole_ppmn(self) -> Path:
        """The run of row A, which other rows use."""
        return self.trained("ppmn", self.config("compact"))

    def two_stage(self) -> None:
        """Rows B, C and F: three rules for plurals, three oracles, PPMN's responses on the regions."""
        one = self.trained("stage-one-half", self.config("two-stage-small", share=0.5))
        matching = replace(self.config("two-stage-small", share=0.5), model=self.stage_two(one).model)
        two = self.trained("stage-two-half", matching, init=one, cache="cache-regions-half")
        self.rules("two-stage", two, [one, two])
        self.oracles("stage one", one)
        self.note_outcomes("two-stage, plurals by text", "oracle of stage one")
        grounder = self.opened(two)
        self.measured("PPMN on regions", grounder, snapped_answers(self.opened(self.whole_ppmn()), grounder))

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
        grounder = self.opened(folder)
        self.measured(f"{name}, plurals by text", grounder, own_answers(grounder), runs)
        self.measured(f"{name}, plurals by truth", grounder, truth_flag_answers(grounder), runs)
        grounder = self.opened(folder)
        grounder.model.config = changed(grounder.model.config, plural_rule="all")
        self.measured(f"{name}, one rule", grounder, own_answers(grounder), runs)

    def oracles(self, name: str, folder: Path) -> None:
        """Rows C, C' and C'', and what is proposed: recall by size, regions per image, a picture."""
        grounder = self.opened(folder)
        kinds: dict[str, Oracle] = {"": "best", ", union": "union", ", overlapping": "overlapping"}
        for title, kind in kinds.items():
            answers = oracle_answers(grounder, kind)
            self.measured(f"oracle of {name}{title}", grounder, answers, kind="oracle")
        file = self.out / "reports" / f"proposals_of_{name.replace(' ', '_')}.md"
        if not file.is_file():
            report = measure_proposals(grounder, self.test, file.with_suffix(".png"))
            with replacing(file) as part:
                part.write_text(report.table(), encoding="utf-8")
        self.notes.append(f"Proposals of {name}:\n\n{file.read_text(encoding='utf-8')}")

    def note_outcomes(self, system: str, oracle: str) -> None:
        """How many phrases the proposals lose, and how many the matching."""
        reports = {row.name: row.report for row in self.rows}
        shares = matching_outcomes(reports[system], reports[oracle])
        self.notes.append(
            f"{system}: {', '.join(f'{name} {share:.1f} %' for name, share in shares.items())}."
        )

    def true_segments(self) -> None:
        """Rows D and E: matching of pooled regions against responses, with the annotated segments."""
        one = self.trained("stage-one-half", self.config("two-stage-small", share=0.5))
        config = self.stage_two(one, "model.true_segments=true")
        folder = self.trained("stage-two-true", config, init=one)
        grounder = self.opened(folder)
        self.measured("true segments, matched", grounder, true_segment_answers(grounder), [one, folder])
        grounder = self.opened(self.whole_ppmn())
        self.measured("true segments, PPMN", grounder, snapped_answers(grounder))

    def objects(self) -> None:
        """The other stage one: "the object here" of a model that points, drawn on a grid."""
        model = load(self.args.pointing, runtime="torch").model.config
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
        grounder = self.opened(folder)
        self.measured("MCN", grounder, own_answers(grounder), [folder], kind="things")
        for kind in ("none", "hard"):
            other = self.opened(folder)
            other.model.config = changed(other.model.config, suppression=kind)
            self.measured(f"MCN, suppression {kind}", other, own_answers(other), [folder], kind="things")
        ablations = {
            "without boxes": ("model.box_branch=false", "model.consistency=false"),
            "without consistency": ("model.consistency=false",),
            "phrase in its caption": ("model.context=caption",),
        }
        for name, changes in ablations.items():
            folder = self.trained(
                f"mcn-{name.replace(' ', '-')}", self.config("mcn-small", anchors, *changes)
            )
            grounder = self.opened(folder)
            self.measured(f"MCN, {name}", grounder, own_answers(grounder), [folder], kind="things")

    def shipped(self) -> None:
        """The model that ships, trained otherwise."""
        grounder = self.opened("compact")
        self.measured("compact", grounder, own_answers(grounder), kind="below", model="compact")

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
    add("--rows", nargs="+", choices=ROWS, default=ROWS[:5], help="any of %(choices)s")
    add("--epochs", type=int, default=4)
    add("--batch-size", type=int, default=8)
    add("--sides", type=parse_size, default=(336, 448), metavar="HxW")
    add("--precision", choices=("float32", "bfloat16"), default=PRECISION, help="of training")
    add("--validation-images", type=int, default=100, help="held-out images that settings are chosen on")
    add("--pointing", type=Path, help="a model that points, for the row `objects`")
    add("--seed", type=int, default=0)
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field in every run")
    args = parser.parse_args(argv)
    if args.epochs % 2:
        parser.error(f"--epochs is {args.epochs}; both stages get half of them, so it must be even")
    show_log()
    make_folder(args.out / "reports")
    table = Table(args)
    for row in args.rows:
        step: Callable[[], object] = getattr(table, row)
        step()
    if "ppmn" in args.rows:
        print(table.write())
    else:
        _log.info(f"the rows {', '.join(args.rows)} are finished; with the row ppmn the table is written")


if __name__ == "__main__":
    main()
