"""Measure a model, or files of predictions."""

import argparse
from pathlib import Path

HELP = "measure a model, or files of predictions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--model", help="a model's name or folder")
    who.add_argument("--predictions", type=Path, metavar="FILE", help="JSON lines that any system wrote")
    parser.add_argument("--data", action="append", default=[], metavar="ROOT[:SPLIT]", help="repeatable")
    parser.add_argument(
        "--protocol",
        choices=("full", "ppmn2022"),
        default="full",
        help="how masks are compared (default: full)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--save-predictions", type=Path, metavar="FILE", help="write the masks as JSON lines")
    parser.add_argument(
        "--compare", type=Path, metavar="RUN.json", help="paired difference to an earlier run"
    )
    parser.add_argument("--curves", type=Path, metavar="FILE.png", help="draw the recall curves")
    parser.add_argument(
        "--with",
        dest="with_runs",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN.json",
        help="add earlier runs to the curves",
    )
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="draw the N phrases with the lowest IoU"
    )
    parser.add_argument(
        "--sheet", type=Path, default=Path("worst.png"), metavar="FILE.png", help="file of --worst"
    )


def run(args: argparse.Namespace) -> None:
    from ppmn.evaluation.evaluate import run as evaluate

    evaluate(args)
