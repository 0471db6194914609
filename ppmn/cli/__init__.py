"""The `ppmn` command. Building the parser imports nothing heavy; a sub-command imports what it runs."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from ppmn import __version__
from ppmn.cli import ablate, compare, convert, data, evaluate, export, ground, profile, push, serve, train
from ppmn.errors import InputError

# packages that are not part of every installation, by the extra that installs them
_EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "pyarrow": "ray",
    "matplotlib": "train",
    "scipy": "train",
}
COMMANDS = (ground, serve, data, train, evaluate, compare, ablate, profile, convert, export, push)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="ppmn", description="Panoptic narrative grounding.")
    parser.add_argument("--version", action="version", version=f"ppmn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        command.set_defaults(run=module.run)
        module.add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code; bad input is one sentence on standard error and 2."""
    args = build_parser().parse_args(argv)
    show_log()
    try:
        code = args.run(args) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # what reads the output has seen enough; Python would complain at exit
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as SIGPIPE ends other programs
    except InputError as error:
        print(f"ppmn: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = f"pip install 'ppmn[{_EXTRAS[package]}]'"
        print(f"ppmn: ppmn {args.command} needs {package}, which is not installed: {extra}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(": ".join(["ppmn: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return 130


class PlainHandler(logging.Handler):
    """Prints what the library logs: messages to standard output, warnings to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        tqdm.write(self.format(record), file=stream)  # above progress bars
        stream.flush()


def show_log() -> None:
    """Show the log of ppmn, and only of ppmn, from INFO on."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # the hub's client reports every retry
    logger = logging.getLogger("ppmn")
    logger.setLevel(logging.INFO)
    logger.handlers = [PlainHandler()]
