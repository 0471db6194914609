"""Print several evaluations as one table, with paired differences to the first, and draw their curves."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ppmn.cli.arguments import add_out
from ppmn.errors import InputError

if TYPE_CHECKING:
    from ppmn.evaluation.comparison import RowKind, TableRow

HELP = "evaluations side by side, with paired differences"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    rows = "rows of the table, from `ppmn evaluate -o`; the others are compared with the first"
    add("rows", nargs="+", metavar="NAME=RUN.json", help=rows)
    kinds = {
        "things": "of a system for things only",
        "oracle": "of a limit, not of a system",
        "below": "of a system that was trained otherwise",
    }
    for kind, what in kinds.items():
        add(f"--{kind}", action="append", default=[], metavar="NAME=RUN.json", help=f"a row {what}")
    add("--curves", type=Path, metavar="FILE.png", help="draw the recall curves")
    add_out(parser, "write the table as Markdown too", metavar="FILE.md", required=False)


def run(args: argparse.Namespace) -> None:
    from ppmn.evaluation.comparison import comparison_table
    from ppmn.evaluation.figures import curves
    from ppmn.files import check_writable, replacing

    check_writable([file for file in (args.out, args.curves) if file])
    rows = [_row(text, "system") for text in args.rows]
    for kind in ("things", "oracle", "below"):
        rows += [_row(text, kind) for text in getattr(args, kind)]
    table = comparison_table(rows)
    if args.out:
        with replacing(args.out) as part:
            part.write_text(table, encoding="utf-8")
    if args.curves:
        things = [row.name for row in rows if row.kind == "things"]
        curves([(row.name, row.report) for row in rows], args.curves, things_only=things)
    print(table)


def _row(text: str, kind: "RowKind") -> "TableRow":
    from ppmn.evaluation.comparison import TableRow
    from ppmn.evaluation.report import read_report

    name, equals, file = text.rpartition("=")
    if not (name and equals):
        raise InputError(f"{text}: a row is NAME=RUN.json")
    return TableRow(name, read_report(Path(file)), kind)
