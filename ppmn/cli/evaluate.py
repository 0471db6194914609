"""Measure a model, or predictions that any system wrote, on annotated narratives."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppmn.cli.arguments import (
    add_engine,
    add_runtime,
    add_threads,
    check_engine,
    parse_spec,
    pool_options,
    runtime_options,
)
from ppmn.errors import InputError

if TYPE_CHECKING:
    from ppmn.evaluation.evaluate import EvaluationRun
    from ppmn.evaluation.predictions import Answers
    from ppmn.evaluation.report import EvaluationReport
    from ppmn.evaluation.selection import NarrativeSource

    Measured = tuple[EvaluationRun, str, float | None]  # with the name of what was measured and its threshold

HELP = "measure a model, or files of predictions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--model", help="name or folder of the model to measure")
    measured.add_argument("--predictions", type=Path, metavar="FILE", help="or JSON lines of predictions")
    proposals = "regions of stage one, which the published two-stage baseline chooses among"
    add("--proposals", type=Path, metavar="DIR", help=proposals)
    data_help = "data set to measure on; repeatable"
    add("--data", action="append", default=[], metavar="ROOT[:SPLIT]", help=data_help)
    referring_help = "or expressions that refer to single objects; repeatable"
    add("--referring", action="append", default=[], metavar="ROOT[:SPLIT]", help=referring_help)
    part_help = "only images of one side of the training split (default: all)"
    add("--part", choices=("all", "train", "validation"), default="all", help=part_help)
    protocol_help = "how masks are compared (default: full)"
    add("--protocol", choices=("full", "ppmn2022", "png256"), default="full", help=protocol_help)
    add("-o", "--out", "--json", type=Path, metavar="RUN.json", help="write every figure as JSON")
    add("--save-predictions", type=Path, metavar="FILE", help="write the masks as JSON lines")
    add("--compare", type=Path, metavar="RUN.json", help="print the paired difference to an earlier run")
    add("--curves", type=Path, metavar="FILE.png", help="draw the recall curves")
    with_help = "earlier runs to add to --curves"
    add("--with", dest="with_runs", type=Path, nargs="+", default=[], metavar="RUN.json", help=with_help)
    add("--worst", type=int, default=0, metavar="N", help="draw the N phrases with the lowest IoU")
    sheet_help = "where --worst is drawn (default: worst.png)"
    add("--sheet", type=Path, default=Path("worst.png"), metavar="FILE.png", help=sheet_help)
    add_runtime(parser)
    add_engine(parser)
    add_threads(parser, "all; with --engine ray each actor has as many, for the same figures")


def run(args: argparse.Namespace) -> None:
    """Measure, print the table and write what was asked for; all refusals come before the work."""
    from ppmn.distributed import is_main_process, process_group
    from ppmn.evaluation.evaluate import open_narratives_of, worst_sheet
    from ppmn.evaluation.figures import curves, new_figure
    from ppmn.evaluation.report import build_report, read_report
    from ppmn.files import check_writable

    others = [(file.stem, read_report(file)) for file in args.with_runs]
    compared = read_report(args.compare) if args.compare else None
    outputs = (args.out, args.save_predictions, args.curves, args.worst and args.sheet)
    check_writable([file for file in outputs if file])
    if args.curves:
        new_figure(1, 1)  # refused now if matplotlib is missing, not after the work
    if others and args.curves and not (args.model or args.predictions):
        return curves(others, args.curves)
    _check(args, [report for _, report in others] + ([compared] if compared else []))
    if args.referring:
        return _run_referring(args)
    with process_group():
        sources = open_narratives_of([parse_spec(text) for text in args.data], args.part)
        found, name, threshold = _measure(args, sources)
        if not is_main_process():
            return None
        report = build_report(found.metric, name, threshold, sources, args.part)
        _show(args, found, report, compared)
        if args.curves:
            curves([(name, report), *others], args.curves)
        if args.worst:
            worst_sheet(found, sources, args.sheet, count=args.worst)


def _measure(args: argparse.Namespace, sources: Mapping[str, "NarrativeSource"]) -> "Measured":
    """What was found; masks are kept where they are drawn or written."""
    from ppmn.evaluation.evaluate import evaluate

    keep = bool(args.worst or args.save_predictions)
    if args.proposals:
        return _measure_regions(args, sources, keep)
    answers, name, threshold = _answers(args, sources)
    if args.engine == "ray":
        return _evaluate_on_ray(args, sources, keep), name, threshold
    found = evaluate(answers, sources, protocol=args.protocol, keep_predictions=keep)
    return found, name, threshold


def _measure_regions(
    args: argparse.Namespace, sources: Mapping[str, "NarrativeSource"], keep: bool
) -> "Measured":
    """The published two-stage baseline on files of stage one."""
    from ppmn.baselines.proposals import StageOne
    from ppmn.baselines.two_stage_folder import load_two_stage
    from ppmn.evaluation.evaluate import EvaluationRun, evaluate
    from ppmn.evaluation.region_evaluation import evaluate_regions, region_answers
    from ppmn.model.locate import model_folder

    folder = model_folder(args.model)
    grounder = load_two_stage(folder, args.device or "cpu")
    stage_one = StageOne(args.proposals, grounder.config)
    if args.protocol == "full":
        found = evaluate(region_answers(grounder, stage_one), sources, keep_predictions=keep)
    else:
        found = EvaluationRun(evaluate_regions(grounder, stage_one, sources, protocol=args.protocol), {})
    return found, folder.name, None


def _evaluate_on_ray(
    args: argparse.Namespace, sources: Mapping[str, "NarrativeSource"], keep: bool
) -> "EvaluationRun":
    import torch

    from ppmn.evaluation.evaluate_corpus import evaluate_on_ray

    specs = [parse_spec(text) for text in args.data]
    pool = pool_options(args, torch.get_num_threads())
    options = {"part": args.part, "protocol": args.protocol, "keep_predictions": keep}
    return evaluate_on_ray(args.model, specs, sources, pool, **options)


def _check(args: argparse.Namespace, reports: Sequence["EvaluationReport"]) -> None:
    check_engine(args)
    if args.engine and (args.predictions or args.referring):
        raise InputError("--engine ray measures a model on narratives: give --model and --data")
    if not (args.model or args.predictions):
        raise InputError("nothing to measure: give --model or --predictions, or --curves and --with")
    if args.referring:
        return _check_referring(args)
    if args.proposals:
        _check_proposals(args)
    if not args.data:
        raise InputError("nothing to measure on: give --data ROOT[:SPLIT]")
    if args.worst < 0:
        raise InputError(f"--worst is {args.worst}; it must be 0 or more")
    if args.with_runs and not args.curves:
        raise InputError("--with adds runs to a picture: give its file with --curves")
    if {report["protocol"] for report in reports} - {args.protocol}:
        raise InputError(f"only runs of one protocol can be compared; this one is {args.protocol}")
    if args.protocol != "full" and (args.predictions or args.save_predictions):
        raise InputError("files of predictions hold masks of the image's size and need protocol full")


def _check_proposals(args: argparse.Namespace) -> None:
    if not args.model:
        raise InputError("--proposals needs the model that chooses among them: give --model")
    given = [name for name in ("engine", "threads") if getattr(args, name) is not None]
    given += [name for name in ("runtime", "precision") if getattr(args, name) != "auto"]
    if given:
        raise InputError(f"--{given[0]} cannot be used with --proposals")
    if args.protocol == "ppmn2022":
        raise InputError(
            "protocol ppmn2022 is defined only for response maps at 800/1333, not for --proposals"
        )
    if args.protocol == "png256" and args.worst:
        raise InputError("--worst draws masks of the image's size and needs protocol full")


def _check_referring(args: argparse.Namespace) -> None:
    others = (
        "data",
        "proposals",
        "predictions",
        "save_predictions",
        "compare",
        "curves",
        "with_runs",
        "worst",
    )
    given = [name.removesuffix("_runs").replace("_", "-") for name in others if getattr(args, name)]
    given += ["protocol"] if args.protocol != "full" else []
    if given:
        raise InputError(f"--referring measures expressions of its own; it cannot be used with --{given[0]}")


def _run_referring(args: argparse.Namespace) -> None:
    import ppmn
    from ppmn.distributed import is_main_process, process_group
    from ppmn.evaluation.referring import (
        format_referring,
        measure_referring,
        open_referring,
        referring_report,
    )
    from ppmn.files import write_json

    with process_group():
        sources = open_referring([parse_spec(text) for text in args.referring], args.part)
        grounder = ppmn.load(args.model, **runtime_options(args))
        report = referring_report(measure_referring(grounder, sources), grounder, args.part)
        if not is_main_process():
            return
        if args.out:
            write_json(args.out, report, indent=1)
        print(format_referring(report))


def _answers(
    args: argparse.Namespace, sources: Mapping[str, "NarrativeSource"]
) -> tuple["Answers", str, float | None]:
    """What answers, its name and its threshold."""
    import ppmn
    from ppmn.evaluation.evaluate import mask_threshold
    from ppmn.evaluation.grounder_answers import grounder_answers
    from ppmn.evaluation.predictions import file_answers, read_predictions

    if args.predictions:
        return file_answers(read_predictions(args.predictions, sources)), args.predictions.name, None
    grounder = ppmn.load(args.model, **runtime_options(args))
    threshold = mask_threshold(grounder, args.protocol)
    return grounder_answers(grounder, args.protocol), grounder.name, threshold


def _show(
    args: argparse.Namespace,
    found: "EvaluationRun",
    report: "EvaluationReport",
    compared: "EvaluationReport | None",
) -> None:
    from ppmn.evaluation.predictions import write_predictions
    from ppmn.evaluation.report import compare_reports, format_comparison, format_report, write_report

    if args.out:
        write_report(report, args.out)
    if args.save_predictions:
        write_predictions(found.predictions, args.save_predictions)
    print(format_report(report))
    if compared:
        print(format_comparison(*compare_reports(report, compared), str(args.compare)))
