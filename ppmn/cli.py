"""The `ppmn` command: one function a sub-command, argument plumbing only."""

import argparse
import sys
from collections.abc import Sequence

from ppmn import __version__
from ppmn.errors import InputError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="ppmn", description="Panoptic narrative grounding.")
    top.add_argument("--version", action="version", version=f"ppmn {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _data(commands.add_parser("data", help="check, narrate or draw a data set"))
    return top


def _data(group: argparse.ArgumentParser) -> None:
    commands = group.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="count what is in a data set and list its problems")
    check.add_argument("data", metavar="ROOT[:SPLIT]", help="a folder in the layout of COCO panoptic")
    check.set_defaults(run=data_check)


def data_check(args: argparse.Namespace) -> int:
    from ppmn.data.check import check
    from ppmn.data.png import parse_spec

    spec = parse_spec(args.data)
    reports = check(spec.root, spec.split)
    print("\n\n".join(report.table() for report in reports))
    for report in reports:
        for problem in report.problems:
            print(f"{report.split}, image {problem.image_id}: {problem.text}")
    return int(any(report.problems for report in reports))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code; bad input is one sentence on standard error and 2."""
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except InputError as error:
        print(f"ppmn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ppmn: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
