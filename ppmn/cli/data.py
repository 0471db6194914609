"""Check a data set, write captions for one, or draw one."""

import argparse

from ppmn.cli.arguments import add_out, parse_spec

HELP = "check, narrate or draw a data set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="count what is in a data set and list its problems")
    _add_data(check)
    narrate = commands.add_parser("narrate", help="write narratives for a COCO panoptic data set")
    _add_data(narrate)
    add_out(narrate, "JSON file of the narratives, in the format of the PNG benchmark", metavar="FILE")
    _add_seed(narrate)
    narrate.add_argument("--epoch", type=int, default=0, help="narratives differ by epoch (default: 0)")
    negatives = "phrases per narrative for categories that are not in the image (default: 0)"
    narrate.add_argument("--negative-phrases", type=int, default=0, metavar="N", help=negatives)
    scenes = commands.add_parser("scenes", help="draw scenes with exact masks and captions")
    add_out(scenes, "folder of the data set")
    scenes.add_argument("--count", type=int, required=True, metavar="N", help="number of scenes")
    scenes.add_argument("--split", default="train", help="name of the split (default: train)")
    _add_seed(scenes)


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="ROOT[:SPLIT]", help="folder in the layout of COCO panoptic")


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal results (default: 0)")


def run(args: argparse.Namespace) -> int | None:
    commands = {"check": _check, "narrate": _narrate, "scenes": _scenes}
    return commands[args.data_command](args)


def _check(args: argparse.Namespace) -> int:
    from ppmn.data.check import check

    spec = parse_spec(args.data)
    reports = check(spec.root, spec.split)
    print("\n\n".join(report.table() for report in reports))
    for report in reports:
        for problem in report.problems:
            print(f"{report.split}, image {problem.image_id}: {problem.text}")
    return int(any(report.problems for report in reports))


def _narrate(args: argparse.Namespace) -> None:
    from ppmn.synthetic.narrate import narrate_split

    spec = parse_spec(args.data)
    options = {"seed": args.seed, "epoch": args.epoch, "negative_phrases": args.negative_phrases}
    options["incomplete"] = spec.incomplete
    narratives, phrases, grounded = narrate_split(spec.root, spec.split, args.out, **options)
    print(f"{args.out}: {narratives} narratives, {phrases} noun phrases, {grounded} grounded")


def _scenes(args: argparse.Namespace) -> None:
    from ppmn.synthetic.scenes import write_scenes

    write_scenes(args.out, args.count, split=args.split, seed=args.seed)
    print(f"{args.out}: {args.count} scenes, split {args.split}")
