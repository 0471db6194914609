"""Train and measure every row of Table 1 under one budget, and print the table.

python -m experiments.table1 --data ROOT[:SPLIT][=WEIGHT] ... --test ROOT[:SPLIT] --out DIR [--rows ...]

Every row is trained on the same images, with the same generated narratives and the same number of image
passes, both encoders frozen. Passes of stage one count: it gets half of them, stage two the other half; rows
of `twice` give each stage the whole budget. In rows of `crossed` and `twice`, stage two is trained on
proposals of networks that had not seen the image, which take passes of their own. Rows that use the
shipped model stand below the others: its encoder was trained. Thresholds are chosen on the images held out
from training; the test data is read once per row. Whatever is finished is skipped, what was stopped
continues; two processes may share DIR, each with its own --rows and OMP_NUM_THREADS=1. The table is written
by a process whose rows include ppmn, once they are all finished.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.table1_choices import (
    OBJECT_SCORES,
    anchor_shapes,
    by_min_score,
    by_plural_threshold,
    by_threshold,
    changed,
    cross_proposals,
    set_fields,
)
from experiments.table1_runs import Runs
from ppmn.cli import show_log
from ppmn.cli.arguments import parse_size
from ppmn.config import TrainConfig
from ppmn.evaluation.comparison import RowKind, TableRow, comparison_table, matching_outcomes
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
from ppmn.files import make_folder, replacing
from ppmn.grounding.grounder import Grounder, load
from ppmn.model.bfloat16 import bfloat16_is_faster
from ppmn.model.folder import MODEL_FILE, save_model
from ppmn.presets import override
from ppmn.training.initial import initial_model

_log = logging.getLogger("ppmn.table1")
ROWS = [
    "ppmn",
    "two_stage",
    "crossed",
    "true_segments",
    "mcn",
    "shipped",
    "objects",
    "twice",
    "matched_objects",
]
USUAL = ROWS[:6]
CURVES = (  # rows that are drawn
    "PPMN",
    "PPMN without LCPA",
    "two-stage, plurals by text",
    "two-stage, crossed, plurals by text",
    "two-stage twice, crossed, plurals by text",
    "oracle of stage one",
    "MCN",
)
NOTES = (
    "Thresholds are chosen on images held out from training, for each rule and each suppression its own; "
    "PPMN on regions and on true segments keeps that of PPMN.",
    "Stage two saw proposals of images that its stage one was trained on in the rows two-stage, two-stage "
    "twice and two-stage on objects; not in rows that are crossed, and not in true segments.",
    "Rows on objects start from a trained encoder; their costs are those of stage two alone.",
)
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
        config = self.stage_two(one, share=0.5)
        two = self.trained("stage-two-half", config, init=one, cache="cache-regions-half")
        self.rules("two-stage", two, [one, two])
        self.oracles("stage one", one)
        self.note_outcomes("two-stage, plurals by text", "oracle of stage one")
        grounder = self.opened(two)
        self.measured("PPMN on regions", grounder, snapped_answers(self.opened(self.whole_ppmn()), grounder))

    def crossed(self) -> None:
        """Row B with stage two on crossed proposals."""
        self.cross("two-stage, crossed", share=0.5, suffix="-half")

    def twice(self) -> None:
        """Both stages with the whole budget each, stage two on crossed proposals and on others."""
        one = self.cross("two-stage twice, crossed")
        uncrossed = self.trained("stage-two", self.stage_two(one), init=one, cache="cache-regions")
        self.rules("two-stage twice", uncrossed, [one, uncrossed])
        self.oracles("stage one twice", one)
        self.note_outcomes("two-stage twice, plurals by text", "oracle of stage one twice")

    def cross(self, title: str, *, share: float = 1.0, suffix: str = "") -> Path:
        """A system whose stage two is trained on crossed proposals; returns its stage one."""
        one = self.trained(f"stage-one{suffix}", self.config("two-stage-small", share=share))
        halves = []
        for fold in ("first", "second"):
            half = self.config("two-stage-small", f"model.fold={fold}", share=share)
            halves.append(self.trained(f"stage-one-{fold}{suffix}", half))
        config, cache = self.stage_two(one, "model.crossed=halves", share=share), f"cache-crossed{suffix}"
        cross_proposals(config, self.specs, one, halves, cache=self.out / cache, features=self.cache)
        two = self.trained(f"stage-two-crossed{suffix}", config, init=one, cache=cache)
        self.rules(title, two, [one, *halves, two])
        return one

    def stage_two(self, one: Path, *changes: str, share: float = 1.0) -> TrainConfig:
        """The configuration of stage two on a finished stage one."""
        model = load(one).model.config
        config = replace(self.config("two-stage-small", share=share), model=model)
        for text in ("model.stage=two", *changes):
            name, _, value = text.partition("=")
            config = override(config, name, value)
        return config

    def rules(self, name: str, folder: Path, runs: Sequence[Path], kind: RowKind = "system") -> None:
        """A two-stage system by its three rules for plurals, each with a threshold of its own."""
        grounder = self.opened(folder)
        self.measured(f"{name}, plurals by text", grounder, own_answers(grounder), runs, kind)
        title, file = f"{name}, plurals by truth", folder / "chosen_truth.json"
        threshold = self.chosen(file, lambda: self.plural_thresholds(folder, truth_flag_answers))
        set_fields(grounder, plural_threshold=threshold)
        self.measured(title, grounder, truth_flag_answers(grounder), runs, kind, annotated=True)
        title, file = f"{name}, one rule", folder / "chosen_one_rule.json"
        threshold = self.chosen(file, lambda: self.plural_thresholds(folder, own_answers, plural_rule="all"))
        set_fields(grounder, plural_threshold=threshold, plural_rule="all")
        self.measured(title, grounder, own_answers(grounder), runs, kind)

    def plural_thresholds(
        self, folder: Path, answers_of: Callable[[Grounder], Answers], **fields: str
    ) -> dict[float, float]:
        """Average Recall on held-out images by `plural_threshold`, under another rule."""
        grounder = self.opened(folder)
        set_fields(grounder, **fields)
        return by_plural_threshold(grounder, self.held_out, answers_of)

    def oracles(self, name: str, folder: Path, row_kind: RowKind = "oracle") -> None:
        """Rows C, C' and C'', and what is proposed: recall by size, regions per image, a picture."""
        grounder = self.opened(folder)
        kinds: dict[str, Oracle] = {"": "best", ", union": "union", ", overlapping": "overlapping"}
        for title, kind in kinds.items():
            answers = oracle_answers(grounder, kind)
            self.measured(f"oracle of {name}{title}", grounder, answers, kind=row_kind, annotated=True)
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
        config = self.stage_two(one, "model.true_segments=true", share=0.5)
        folder = self.trained("stage-two-true", config, init=one)
        grounder = self.opened(folder)
        answers, runs = true_segment_answers(grounder), [one, folder]
        self.measured("true segments, matched", grounder, answers, runs, annotated=True)
        grounder = self.opened(self.whole_ppmn())
        self.measured("true segments, PPMN", grounder, snapped_answers(grounder), annotated=True)

    def objects(self) -> None:
        """The limit of the other stage one: "the object here" of a model that points, drawn on a grid."""
        folder = self.out / "runs" / "objects"
        if not (folder / MODEL_FILE).is_file():
            save_model(initial_model(self.objects_config(), self.args.pointing), folder)
        self.oracles("objects", folder, "below")

    def matched_objects(self) -> None:
        """A stage two on these objects."""
        config, pointing = self.objects_config(), self.args.pointing
        folder = self.trained("stage-two-objects", config, init=pointing, cache="cache-objects")
        self.rules("two-stage on objects", folder, [folder], "below")

    def objects_config(self) -> TrainConfig:
        """The configuration of stage two on objects, with the score that they need."""
        model = load(self.args.pointing, runtime="torch").model.config
        preset = self.config("two-stage-small", share=0.5)
        shared = {name: getattr(model, name) for name in ("image", "text", "pointing")}
        config = replace(preset, model=changed(preset.model, stage="two", **shared))
        file = self.out / "runs" / "chosen_objects.json"
        score = self.chosen(file, lambda: self.object_scores(config))
        return replace(config, model=changed(config.model, min_score=score))

    def object_scores(self, config: TrainConfig) -> dict[float, float]:
        """The limit that objects set on held-out images, by the score that they need."""
        grounder = Grounder(initial_model(config, self.args.pointing), device="cpu")
        self.features.share(grounder.model)
        return by_min_score(grounder, self.held_out, OBJECT_SCORES)

    def mcn(self) -> None:
        """MCN and its ablations."""
        anchors = f"model.anchors={anchor_shapes(self.specs, self.config('mcn-small'))}"
        folder = self.trained("mcn", self.config("mcn-small", anchors))
        grounder = self.opened(folder)
        self.measured("MCN", grounder, own_answers(grounder), [folder], kind="things")
        for kind in ("none", "hard"):
            other = self.opened(folder)
            set_fields(other, suppression=kind)
            file = folder / f"chosen_suppression_{kind}.json"
            set_fields(other, threshold=self.chosen(file, partial(by_threshold, other, self.held_out)))
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
        """The table and its curves."""
        rows = in_order(self.rows)
        text = "\n\n".join([comparison_table(rows), *NOTES, *self.speed(), *self.notes, ""])
        with replacing(self.out / "table1.md") as part:
            part.write_text(text, encoding="utf-8")
        shown = [(row.name, row.report) for row in rows if row.name in CURVES]
        things = [row.name for row in rows if row.kind == "things"]
        curves(shown, self.out / "table1.png", things_only=things)
        return text


def in_order(rows: Sequence[TableRow]) -> list[TableRow]:
    """PPMN first, with which all are compared; then systems, those for things only, oracles, others."""
    order = ("system", "things", "oracle", "below")
    return sorted(rows, key=lambda row: (row.name != "PPMN", order.index(row.kind)))


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
    add("--rows", nargs="+", choices=ROWS, default=USUAL, help="any of %(choices)s")
    add("--epochs", type=int, default=4)
    add("--batch-size", type=int, default=8)
    add("--sides", type=parse_size, default=(336, 448), metavar="HxW")
    add("--precision", choices=("float32", "bfloat16"), default=PRECISION, help="of training")
    add("--validation-images", type=int, default=100, help="held-out images that settings are chosen on")
    add("--pointing", type=Path, help="a model that points, for rows on objects")
    add("--seed", type=int, default=0)
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field in every run")
    args = parser.parse_args(argv)
    if args.epochs % 2:
        parser.error(f"--epochs is {args.epochs}; both stages get half of them, so it must be even")
    if {"objects", "matched_objects"} & set(args.rows) and args.pointing is None:
        parser.error("rows on objects need --pointing, the folder of a model that points")
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
