"""Ground a caption's noun phrases on an image, or on many images."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import ppmn
from ppmn.cli.arguments import add_device, add_model, add_out
from ppmn.errors import InputError

HELP = "find a caption's noun phrases in an image"
NAME_WIDTH = 40  # characters of a phrase in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    image = 'an image, a folder of images, or a JSONL list with one {"image": FILE, "caption": TEXT} per line'
    parser.add_argument("image", metavar="IMAGE", help=image)
    caption = "the caption; - reads it from standard input (a folder: default NAME.txt beside each image)"
    parser.add_argument("caption", metavar="CAPTION", nargs="?", help=caption)
    add_out(parser, "folder of the results; required for many images", required=False)
    formats = "comma-separated list of json, png, panoptic, html and rounds (default: %(default)s)"
    parser.add_argument("--format", default="json,png,html", help=formats)
    parser.add_argument("--boxes", action="store_true", help="write boxes in place of masks")
    threshold = "response above which a pixel is in a mask (default: the model's)"
    parser.add_argument("--threshold", type=float, help=threshold)
    parser.add_argument("--all", action="store_true", help="also ground phrases that name no object")
    add_model(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from ppmn.grounding.batch import BatchOptions, GroundingJob, ground_jobs, read_jobs

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # some terminals cannot show every letter
    formats = tuple(name.strip() for name in args.format.split(","))
    options = BatchOptions(args.model, args.device, args.threshold, args.all, formats, args.boxes)
    source = Path(args.image).expanduser()
    caption = sys.stdin.read().strip() if args.caption == "-" else args.caption
    if source.is_dir() or source.suffix.lower() == ".jsonl":
        if args.out is None:
            raise InputError("many images need a folder for their results: give it with -o DIR")
        summary = ground_jobs(read_jobs(source, caption), args.out, options)
        print(f"{summary.grounded} grounded, {summary.failed} failed; {summary.results} lists them")
        return int(summary.failed > 0)
    if caption is None:
        raise InputError("there is no caption: give it after the image, or - to read it from standard input")
    if not source.is_file():
        raise InputError(f"{source} is not a file")
    grounder = ppmn.load(options.model, device=options.device)
    grounding = options.ground(grounder, GroundingJob(1, source, caption))
    for warning in grounding.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(describe(grounding, colors=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    if args.out is not None:
        _print_files(ppmn.save(grounding, args.out, formats=formats, boxes=args.boxes))
    return 0


def _print_files(files: Sequence[Path]) -> None:
    masks = [file for file in files if file.parent.name == "masks"]
    for file in files:
        if file not in masks:
            print(f"  {file}")
    if masks:
        print(f"  {masks[0].parent}: {len(masks)} masks")


def describe(grounding: "ppmn.Grounding", *, colors: bool) -> str:
    """The caption with its phrases coloured (or in brackets), then one line per phrase."""
    lines = [_mark_phrases(grounding, colors), ""]
    width = max(min(len(p.text), NAME_WIDTH) for p in grounding)
    image_area = grounding.image.width * grounding.image.height
    for number, phrase in enumerate(grounding):
        name = f"{number + 1:3d} {_printable(phrase.text)[:NAME_WIDTH]:{width}}"
        if phrase.box is None:
            found = f"nowhere above {grounding.threshold:g}"
        else:
            x, y, w, h = phrase.box
            percent = 100 * phrase.area / image_area
            found = f"score {phrase.score:.2f}  area {percent:5.1f} %  box {x},{y} {w}x{h}"
        lines.append(f"{_paint(name, number) if colors else name}  {found}")
    if grounding.skipped:
        skipped = dict.fromkeys(_printable(phrase.text) for phrase in grounding.skipped)
        lines.append(f"not grounded: {', '.join(skipped)}")
    return "\n".join(lines)


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
