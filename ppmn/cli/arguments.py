"""Arguments that several sub-commands share."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppmn.errors import InputError

if TYPE_CHECKING:
    from ppmn.data.panoptic import DataSpec
    from ppmn.grounding.corpus_pool import PoolOptions
    from ppmn.types import Size


def add_model(parser: argparse.ArgumentParser) -> None:
    """`--model`, the model to run."""
    parser.add_argument(
        "--model", default="compact", help="name, folder or hub name of a model (default: compact)"
    )


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """`--device`, `--runtime` and `--precision`: where and how it runs."""
    parser.add_argument("--device", help="cpu, cuda, cuda:N or mps (default: the CUDA GPU if there is one)")
    runtime = "what runs the model (default: torch on a GPU, otherwise ONNX Runtime if it can)"
    parser.add_argument("--runtime", choices=("auto", "onnx", "torch"), default="auto", help=runtime)
    precision = "auto encodes images in 8 bits or bfloat16 where the model allows it (default: auto)"
    parser.add_argument("--precision", choices=("auto", "float32"), default="auto", help=precision)


def add_threads(parser: argparse.ArgumentParser, default: str) -> None:
    """`--threads`, of an operation."""
    parser.add_argument("--threads", type=int, metavar="N", help=f"processor threads (default: {default})")


def runtime_options(args: argparse.Namespace) -> dict[str, Any]:
    """These arguments as options of `ppmn.load`."""
    return {name: getattr(args, name) for name in ("device", "runtime", "precision", "threads")}


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--engine ray` with where it runs, for many images."""
    add = parser.add_argument
    add("--engine", choices=("ray",), help="run on Ray: on all cores of this machine, or on a cluster")
    address = "a Ray cluster: auto or HOST:PORT (default: Ray on this machine)"
    add("--address", metavar="ADDRESS", help=address)
    add("--actors", type=int, metavar="N", help="processes with a model each (default: CPUs / threads)")


def pool_options(args: argparse.Namespace, threads: int) -> "PoolOptions":
    """Where `--engine ray` does its work."""
    from ppmn.grounding.corpus_pool import PoolOptions

    chosen = threads if args.threads is None else args.threads
    return PoolOptions(args.address, args.actors, chosen, getattr(args, "device", None))


def check_engine(args: argparse.Namespace, *more: str) -> None:
    """Refuse options of Ray without it: those of `add_engine`, and `more` of a command's own."""
    for name in ("address", "actors", *more):
        if getattr(args, name) is not None and args.engine is None:
            raise InputError(f"--{name.replace('_', '-')} is an option of --engine ray")
    for name in ("runtime", "precision"):
        if args.engine is not None and getattr(args, name, "auto") != "auto":
            raise InputError(f"--{name} cannot be used with --engine ray")


def add_out(parser: argparse.ArgumentParser, help: str, metavar: str = "DIR", required: bool = True) -> None:
    """`-o/--out`, where results are written."""
    parser.add_argument("-o", "--out", type=Path, required=required, metavar=metavar, help=help)


def parse_size(text: str) -> "Size":
    """`HxW` as height and width."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; 800x1216 is one")
    return int(height), int(width)


def parse_spec(text: str) -> "DataSpec":
    """Read `ROOT[:SPLIT][=WEIGHT][,incomplete]`.

    The weight is how often each image of a source is used in an epoch: 3 is three times, 0.2 a random fifth
    of its images; 1 by default. `incomplete` says that not all that its categories name is annotated.
    """
    from ppmn.data.panoptic import DataSpec, splits

    rest, weight = text, 1.0
    incomplete = not Path(text).is_dir() and text.endswith(",incomplete")
    if incomplete:
        rest = text.removesuffix(",incomplete")
    if not Path(rest).is_dir() and "=" in rest:
        rest, _, number = rest.rpartition("=")
        try:
            weight = float(number)
        except ValueError as error:
            raise InputError(f"data {text}: the weight {number!r} is not a number") from error
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"data {text}: the weight must be a number above 0, not {weight:g}")
    root, split = rest, None
    if not Path(rest).is_dir() and ":" in rest:
        root, _, split = rest.rpartition(":")
    if not root or not Path(root).is_dir():
        raise InputError(f"the data {root or rest!r} is not a folder")
    if split is not None and split not in splits(Path(root)):
        raise InputError(f"data {text}: no split {split!r}; {root} has {', '.join(splits(Path(root)))}")
    return DataSpec(Path(root), split, weight, incomplete)
