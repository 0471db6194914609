"""Ground a caption's noun phrases on an image, or on many images."""

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import ppmn
from ppmn.cli.arguments import (
    add_engine,
    add_model,
    add_runtime,
    add_threads,
    check_engine,
    pool_options,
    runtime_options,
)
from ppmn.errors import InputError

if TYPE_CHECKING:
    from ppmn.grounding.batch import BatchOptions

HELP = "find a caption's noun phrases in an image"
FORMATS = "json, png, polygons, panoptic, html, rounds, yolo, labelme, labelstudio, cvat, cutouts, contact"
DEFAULT_FORMATS = "json,png,html"
NAME_WIDTH = 40  # characters of a phrase in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    image = (
        "an image, - to read one from standard input, a folder of images (with its sub-folders), "
        'or a JSONL list with one {"image": FILE, "caption": TEXT} per line; with --engine ray also Parquet '
        "or WebDataset tar files, and URLs"
    )
    parser.add_argument("image", metavar="IMAGE", help=image)
    caption = "the caption; - reads it from standard input (a folder: default NAME.txt beside each image)"
    parser.add_argument("caption", metavar="CAPTION", nargs="?", help=caption)
    out = "folder of the results; required for many images"
    parser.add_argument("-o", "--out", metavar="DIR", help=out)  # with --engine ray it may be a URL
    json_help = (
        "write the COCO JSON of one image to FILE, with --engine ray that of all images; - prints it for one "
        "image, and all else goes to standard error"
    )
    parser.add_argument("--json", metavar="FILE", help=json_help)
    formats = f"comma-separated list of {FORMATS} (default: %(default)s)"
    parser.add_argument("--formats", default=DEFAULT_FORMATS, metavar="LIST", help=formats)
    parser.add_argument("--boxes", action="store_true", help="write boxes in place of masks")
    threshold = "response above which a pixel is in a mask (default: the model's)"
    parser.add_argument("--threshold", type=float, help=threshold)
    instances = "one annotation per object, not per phrase, in the JSON"
    parser.add_argument("--instances", action="store_true", help=instances)
    absent = "keep the masks of phrases that are probably not in the image, or of a caption not in English"
    parser.add_argument("--keep-absent", action="store_true", help=absent)
    parser.add_argument("--all", action="store_true", help="also ground phrases that name no object")
    add_model(parser)
    add_runtime(parser)
    add_engine(parser)
    add_threads(parser, "all; with --engine ray 1 for each actor")
    shard_size = "with --engine ray: images per Parquet file, about (default: 32)"
    parser.add_argument("--shard-size", type=int, metavar="N", help=shard_size)
    batch_size = "with --engine ray: images of one size that are encoded together (default: 1)"
    parser.add_argument("--batch-size", type=int, metavar="N", help=batch_size)


def run(args: argparse.Namespace) -> int:
    from ppmn.grounding.batch import BatchOptions

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # some terminals cannot show every letter
    formats = tuple(name.strip() for name in args.formats.split(","))
    options = BatchOptions(
        args.model,
        threshold=args.threshold,
        all_phrases=args.all,
        formats=formats,
        boxes=args.boxes,
        keep_absent=args.keep_absent,
        instances=args.instances,
        **runtime_options(args),
    )
    check_engine(args, "shard_size", "batch_size")
    location, args.out = args.out, Path(args.out) if args.out else None
    source = Path(args.image).expanduser()
    if args.image == args.caption == "-":
        raise InputError("standard input holds the image or the caption, not both")
    caption = _read_caption() if args.caption == "-" else args.caption
    if args.engine == "ray":
        return _ground_corpus(location, caption, args, options)
    if args.image != "-" and (source.is_dir() or source.suffix.lower() == ".jsonl"):
        return _ground_many(source, caption, args, options)
    if caption is None:
        raise InputError("there is no caption: give it after the image, or - to read it from standard input")
    if args.image != "-" and not source.is_file():
        raise InputError(f"{source} is not a file")
    _ground_one(source, caption, args, options)
    return 0


def _read_caption() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        text = f"the caption on standard input is not text in {error.encoding.upper()}"
        raise InputError(f"{text} ({error.reason} at byte {error.start})") from error


def _ground_one(source: Path, caption: str, args: argparse.Namespace, options: "BatchOptions") -> None:
    from ppmn.files import check_writable, make_writable_folder, write_json

    if args.out is not None:
        make_writable_folder(args.out)
    to_stdout = args.json == "-"
    if args.json and not to_stdout:
        check_writable([Path(args.json)])
    image = sys.stdin.buffer.read() if args.image == "-" else source
    if not image:
        raise InputError("nothing came from standard input, where the image should be")
    with redirect_stdout(sys.stderr) if to_stdout else nullcontext():
        grounding = options.ground(options.load(), image, caption)
        for warning in grounding.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        print(describe(grounding, colors=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
        if args.out is not None:
            _print_files(options.save(grounding, args.out), args.out)
        coco = ppmn.to_coco(grounding, masks=not args.boxes, instances=args.instances) if args.json else None
    if to_stdout:
        print(json.dumps(coco))
    elif args.json:
        write_json(Path(args.json), coco)
        print(f"  {args.json}")
    elif args.out is None:
        print("Nothing was saved: -o DIR saves masks, a page and JSON.", file=sys.stderr)


def _ground_many(source: Path, caption: str | None, args: argparse.Namespace, options: "BatchOptions") -> int:
    from ppmn.grounding.batch import ground_jobs, read_jobs
    from ppmn.images import INSTALL

    if args.out is None:
        raise InputError("many images need a folder for their results: give it with -o DIR")
    if args.json:
        raise InputError("--json is for one image; the results of many are listed in results.jsonl")
    if args.out.resolve() == source.resolve():
        raise InputError(f"{args.out} holds the images; give another folder for the results with -o DIR")
    summary = ground_jobs(read_jobs(source, caption, leave_out=args.out), args.out, options)
    for name, count in summary.missing_decoders.items():
        files = "file was" if count == 1 else "files were"
        print(f"{count} {name} {files} not read: {INSTALL[name]}", file=sys.stderr)
    print(f"{summary.grounded} grounded, {summary.failed} failed; {summary.results} lists them")
    return int(summary.failed > 0)


def _ground_corpus(
    out: str | None, caption: str | None, args: argparse.Namespace, options: "BatchOptions"
) -> int:
    from ppmn.grounding.corpus_run import corpus

    if out is None:
        raise InputError("a corpus needs a folder for its results: give it with -o DIR")
    formats = args.formats != DEFAULT_FORMATS
    for name, given in (("--boxes", args.boxes), ("--instances", args.instances), ("--formats", formats)):
        if given:
            raise InputError(
                f"{name} cannot be used with --engine ray, which writes Parquet, and --json COCO"
            )
    if args.json == "-":
        raise InputError("--json names a file with --engine ray; it cannot be -")
    done = corpus(
        args.image,
        out,
        model=options.model,
        caption=caption,
        threshold=options.threshold,
        all_phrases=options.all_phrases,
        keep_absent=options.keep_absent,
        batch_size=1 if args.batch_size is None else args.batch_size,
        shard_size=32 if args.shard_size is None else args.shard_size,
        coco=Path(args.json) if args.json else None,
        pool=pool_options(args, 1),
    )
    rate = (done.grounded + done.failed) / max(done.seconds, 1e-9)
    print(f"{done.grounded} grounded, {done.failed} failed, {rate:.1f} images per second")
    print(
        f"{out}/shards: {done.phrases} phrases of {done.images} images; errors.parquet: {done.errors} images"
    )
    return int(done.errors > 0)


def _print_files(files: Sequence[Path], out: Path) -> None:
    masks = [file for file in files if file.parent == out / "masks"]
    for file in files:
        if file not in masks:
            print(f"  {file}")
    if masks:
        print(f"  {masks[0].parent}: {len(masks)} masks")


def describe(grounding: "ppmn.Grounding", *, colors: bool) -> str:
    """The caption with its phrases coloured (or in brackets), then one line per phrase."""
    lines = [_mark_phrases(grounding, colors), ""]
    width = max(min(len(p.text), NAME_WIDTH) for p in grounding)
    for number, phrase in enumerate(grounding):
        name = f"{number + 1:3d} {_printable(phrase.text)[:NAME_WIDTH]:{width}}"
        found = _found(phrase, grounding)
        lines.append(f"{_paint(name, number) if colors else name}  {found}")
    if grounding.skipped:
        skipped = dict.fromkeys(_printable(phrase.text) for phrase in grounding.skipped)
        lines.append(f"not grounded: {', '.join(skipped)}")
    return "\n".join(lines)


def _found(phrase: "ppmn.PhrasePrediction", grounding: "ppmn.Grounding") -> str:
    """What was found of a phrase, in a few words."""
    doubt = _doubt(phrase)
    if phrase.box is None:
        return doubt or f"nowhere above {grounding.threshold:g}"
    x, y, w, h = phrase.box
    percent = 100 * phrase.area / (grounding.image.width * grounding.image.height)
    count = f"  {len(phrase.instances)} objects" if len(phrase.instances) > 1 else ""
    found = f"score {phrase.score:.2f}  area {percent:5.1f} %  box {x},{y} {w}x{h}{count}"
    return f"{found}  {doubt}".rstrip()


def _doubt(phrase: "ppmn.PhrasePrediction") -> str:
    """Why the mask of a phrase is withheld, unless it is asked for."""
    if phrase.foreign:
        return "not to be relied on: the caption seems not to be English"
    return f"probably not in the image (presence {phrase.presence:.2f})" if phrase.absent else ""


def _mark_phrases(grounding: "ppmn.Grounding", colors: bool) -> str:
    text, done = "", 0
    for number, phrase in sorted(enumerate(grounding), key=lambda pair: pair[1].span):
        start, end = phrase.span
        if start < done:  # inside a phrase that is marked already
            continue
        words = _printable(grounding.caption[start:end])
        text += _printable(grounding.caption[done:start])
        text += _paint(words, number) if colors else f"[{words}]"
        done = end
    return text + _printable(grounding.caption[done:])


def _paint(text: str, number: int) -> str:
    from ppmn.grounding.render import color

    red, green, blue = color(number)
    return f"\x1b[1;38;2;{red};{green};{blue}m{text}\x1b[0m"


def _printable(text: str) -> str:
    """The text without control characters, which could steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)
