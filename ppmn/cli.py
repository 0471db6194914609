"""The `ppmn` command: one function a sub-command, argument plumbing only."""

import argparse
import sys
from collections.abc import Sequence

from ppmn import __version__
from ppmn.errors import InputError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="ppmn", description="Panoptic narrative grounding.")
    top.add_argument("--version", action="version", version=f"ppmn {__version__}")
    top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; bad input is one sentence on standard error and exit code 2."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except InputError as error:
        print(f"ppmn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ppmn: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
