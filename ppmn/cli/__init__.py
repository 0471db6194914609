"""The `ppmn` command: one function a sub-command, argument plumbing only."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppmn import __version__
from ppmn.errors import InputError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="ppmn", description="Panoptic narrative grounding.")
    top.add_argument("--version", action="version", version=f"ppmn {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _data(commands.add_parser("data", help="check, narrate or draw a data set"))
    _ground(commands.add_parser("ground", help="find a caption's noun phrases in a photo"))
    _export(commands.add_parser("export", help="write a model as ONNX graphs"))
    _evaluate(commands.add_parser("evaluate", help="measure a model, or files of predictions"))
    _convert(commands.add_parser("convert", help="bring released weights into a model folder"))
    _serve(commands.add_parser("serve", help="open a page to ground captions on photos"))
    _profile(commands.add_parser("profile", help="count parameters and multiply-adds by part"))

    _train(commands.add_parser("train", help="train a network, or go on with a run"))
    _ablate(commands.add_parser("ablate", help="the paper's ablation tables"))
    return top


def _data(group: argparse.ArgumentParser) -> None:
    commands = group.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="count what is in a data set and list its problems")
    check.add_argument("data", metavar="ROOT[:SPLIT]", help="a folder in the layout of COCO panoptic")
    check.set_defaults(run=data_check)
    narrate = commands.add_parser("narrate", help="narratives for any COCO panoptic data set")
    narrate.add_argument("data", metavar="ROOT[:SPLIT]")
    narrate.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    narrate.add_argument("--seed", type=int, default=0)
    narrate.add_argument("--epoch", type=int, default=0, help="another epoch, another narrative a photo")
    narrate.add_argument("--absent", type=int, default=0, help="phrases a narrative for what is not there")
    narrate.set_defaults(run=data_narrate)
    scenes = commands.add_parser("scenes", help="draw a data set from nothing")
    scenes.add_argument("out", type=Path, metavar="OUT")
    scenes.add_argument("--count", type=int, required=True, metavar="N")
    scenes.add_argument("--split", default="train")
    scenes.add_argument("--seed", type=int, default=0)
    scenes.set_defaults(run=data_scenes)


def data_check(args: argparse.Namespace) -> int:
    from ppmn.data.benchmark import parse_spec
    from ppmn.data.check import check

    spec = parse_spec(args.data)
    reports = check(spec.root, spec.split)
    print("\n\n".join(report.table() for report in reports))
    for report in reports:
        for problem in report.problems:
            print(f"{report.split}, image {problem.image_id}: {problem.text}")
    return int(any(report.problems for report in reports))


def data_narrate(args: argparse.Namespace) -> None:
    from ppmn.data.benchmark import parse_spec
    from ppmn.synthetic.narrator import narrate_split

    spec = parse_spec(args.data)
    n, phrases, grounded = narrate_split(spec.root, spec.split, args.out, args.seed, args.epoch, args.absent)
    print(f"{args.out}: {n} narratives, {phrases} noun phrases, {grounded} grounded")


def data_scenes(args: argparse.Namespace) -> None:
    from ppmn.synthetic.scenes import write_scenes

    write_scenes(args.out, args.count, args.split, args.seed)
    print(f"{args.out}: {args.count} scenes, split {args.split}")


def _ground(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("photo", metavar="PHOTO", help="a photo, a folder of photos, or a JSONL of them")
    sub.add_argument("caption", metavar="CAPTION", nargs="?", help="- reads it from standard input")
    sub.add_argument("-o", "--output", type=Path, metavar="DIR", help="write files to this folder")
    sub.add_argument("--format", default="json,png,html", help="of json, png, panoptic, html, rounds")
    sub.add_argument("--boxes", action="store_true", help="boxes in place of masks")
    sub.add_argument("--threshold", type=float, help="default: the model's own")
    sub.add_argument("--all", action="store_true", help="also phrases that name no object")
    sub.add_argument("--model", default="compact", help="a model's name or folder")
    sub.add_argument("--device", help="cpu, cuda; default: the GPU where there is one")
    sub.set_defaults(run=ground)


def ground(args: argparse.Namespace) -> int:
    from ppmn.grounding.batch import Options, ground_command

    formats = tuple(name.strip() for name in args.format.split(","))
    return ground_command(
        args.photo,
        args.caption,
        Options(args.model, args.device, args.threshold, args.output, formats, args.boxes, args.all),
    )


def _serve(sub: argparse.ArgumentParser) -> None:
    from dataclasses import fields

    from ppmn.serve.limits import Limits

    sub.add_argument("--model", default="compact", help="a model's name or folder")
    sub.add_argument("--device", help="cpu, cuda; default: the GPU where there is one")
    sub.add_argument("--host", default="127.0.0.1", help="default: this machine only")
    sub.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes any that is free")
    sub.add_argument("--token", metavar="T", help="what a client must show")
    for limit in fields(Limits):
        text = f"{limit.metadata['meaning']} (default: {limit.default:,})"
        sub.add_argument(f"--max-{limit.name}", type=int, default=limit.default, metavar="N", help=text)
    sub.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> None:
    from dataclasses import fields

    from ppmn.serve.limits import Limits

    limits = Limits(**{limit.name: getattr(args, f"max_{limit.name}") for limit in fields(Limits)})
    try:
        from ppmn.serve.server import serve as run
    except ImportError as error:
        raise InputError(f"{error.name} is not installed: pip install 'ppmn[serve]'") from error
    run(args.model, args.device, args.host, args.port, args.token, limits)


def _export(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("folder", type=Path, metavar="DIR")
    sub.add_argument("--model", default="compact", help="a model's name or folder")
    sub.set_defaults(run=export)


def export(args: argparse.Namespace) -> None:
    from ppmn.grounding.onnx import export_onnx
    from ppmn.model.folder import load_model, model_folder

    for file in export_onnx(load_model(model_folder(args.model)), args.folder):
        print(file)


def _evaluate(sub: argparse.ArgumentParser) -> None:
    who = sub.add_mutually_exclusive_group()
    who.add_argument("--model", help="a model's name or folder")
    who.add_argument("--predictions", type=Path, metavar="FILE", help="JSON lines that any system wrote")
    sub.add_argument("--data", action="append", default=[], metavar="ROOT[:SPLIT]", help="repeatable")
    sub.add_argument("--protocol", choices=("full", "ppmn2022"), default="full")
    sub.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    sub.add_argument("--save-predictions", type=Path, metavar="FILE", help="write the masks as JSON lines")
    sub.add_argument("--compare", type=Path, metavar="RUN.json", help="paired difference to an earlier run")
    sub.add_argument("--curves", type=Path, metavar="FILE.png", help="draw the recall curves")
    sub.add_argument("--with", dest="with_runs", type=Path, nargs="+", default=[], metavar="RUN.json")
    sub.add_argument(
        "--worst", type=int, default=0, metavar="N", help="draw the N phrases with the least IoU"
    )
    sub.add_argument("--sheet", type=Path, default=Path("worst.png"), metavar="FILE.png", help="of --worst")
    sub.set_defaults(run=evaluate)


def evaluate(args: argparse.Namespace) -> None:
    from ppmn.evaluation.evaluate import run

    run(args)


def _convert(sub: argparse.ArgumentParser) -> None:
    from ppmn.presets import PRESETS

    sub.description = (
        "Make a model folder from a released PPMN checkpoint, detectron2's panoptic FPN (.pkl), "
        "a torchvision ResNet or a BERT. Files are told apart by what they hold; "
        "parts that none of them holds are fresh."
    )
    sub.add_argument("files", nargs="*", type=Path, metavar="CHECKPOINT", help=".pth, .pkl or .safetensors")
    sub.add_argument("--text", metavar="BERT", help="folder, hub name or package:NAME of the text encoder")
    sub.add_argument(
        "--preset", choices=PRESETS, default="ppmn-released", help="the configuration to start from"
    )
    sub.add_argument("--pixels", type=int, metavar="S", help="pixels a query; checkpoints do not record them")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the model folder")
    sub.set_defaults(run=convert)


def convert(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from ppmn.convert import convert as conversion
    from ppmn.model.folder import save_model
    from ppmn.presets import PRESETS

    config = PRESETS[args.preset]().model
    if args.pixels is not None:
        config = replace(config, pixels=args.pixels)
    if (args.output / "config.json").exists():
        raise InputError(f"{args.output} is a model folder already; name another one")
    model, report = conversion.convert(args.files, args.text, config)
    save_model(model, args.output)
    print("\n".join(report))
    print(f"written to {args.output}")


def _profile(sub: argparse.ArgumentParser) -> None:
    from ppmn.presets import PRESETS

    which = sub.add_mutually_exclusive_group()
    which.add_argument("--preset", choices=PRESETS, default="ppmn-released", help="a configuration")
    which.add_argument("--model", help="a model's name or folder")
    sub.add_argument("--size", type=_size, default=(800, 1216), metavar="HxW", help="of the resized photo")
    sub.add_argument("--phrases", type=int, default=30, metavar="N", help="rows that are matched")
    sub.add_argument("--pieces", type=int, default=64, metavar="T", help="word pieces of the caption")
    sub.set_defaults(run=profile)


def profile(args: argparse.Namespace) -> None:
    from ppmn.model import profile as cost
    from ppmn.model.folder import load_model, model_folder
    from ppmn.presets import PRESETS

    if min(args.phrases, args.pieces) < 1:
        raise InputError(f"{args.phrases} phrases and {args.pieces} word pieces; there must be one of each")
    if args.model:
        model = load_model(model_folder(args.model)).to("meta")
        config, encoder, bert = model.config, model.image_encoder, model.text_encoder.bert
    else:
        config = PRESETS[args.preset]().model
        encoder, bert = cost.shapes(config)
    rows = cost.profile(config, encoder, bert, args.size, args.phrases, args.pieces)
    print(f"{args.size[0]} x {args.size[1]} pixels, {args.phrases} rows, {args.pieces} word pieces")
    print(f"{cost.table(rows)}\n\n{cost.claims()}")


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; 800x1216 is one")
    return int(height), int(width)


def _train(sub: argparse.ArgumentParser) -> None:
    _training(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder")
    sub.add_argument("--skip-bad", type=int, default=0, metavar="N", help="go on without up to N photos")
    sub.add_argument(
        "--dry-run", action="store_true", help="check data, memory and one step; estimate the time"
    )
    sub.set_defaults(run=train)


def _training(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--preset", required=True, help="paper, ppmn-released, dagger, scenes or compact")
    sub.add_argument(
        "--data", action="append", required=True, metavar="ROOT[:SPLIT][=WEIGHT]", help="repeatable"
    )
    sub.add_argument("--init", metavar="MODEL", help="a model's name or folder whose encoders to begin with")
    sub.add_argument("--cache", type=Path, metavar="DIR", help="keep what frozen encoders make")
    sub.add_argument("--epochs", type=int)
    sub.add_argument("--batch-size", type=int)
    sub.add_argument("--seed", type=int)
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any field, as model.rounds=2; repeatable",
    )


def _ablate(sub: argparse.ArgumentParser) -> None:
    _training(sub)
    sub.add_argument("--table", required=True, choices=("pixels", "rounds", "aggregation"))
    sub.add_argument("--values", nargs="+", default=[], help="some of the table's rows, such as 0 200")
    sub.add_argument(
        "--test", action="append", required=True, metavar="ROOT[:SPLIT]", help="measured on; repeatable"
    )
    sub.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    sub.add_argument("--out", type=Path, required=True, metavar="DIR")
    sub.set_defaults(run=ablate)


def training_config(args: argparse.Namespace) -> Any:
    from dataclasses import replace

    from ppmn.model.folder import model_folder, read_config
    from ppmn.presets import PRESETS, override

    if args.preset not in PRESETS:
        raise InputError(f"there is no preset {args.preset!r}; there are {', '.join(PRESETS)}")
    config = PRESETS[args.preset]()
    if args.init:
        config = replace(config, model=read_config(model_folder(args.init)))
    short = {name: getattr(args, name) for name in ("epochs", "batch_size", "seed")}
    fields = [f"{name}={value}" for name, value in short.items() if value is not None]
    for text in [*fields, *args.set]:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}: it must be FIELD=VALUE")
        config = override(config, name, value)
    return config


def train(args: argparse.Namespace) -> None:
    from ppmn.evaluation.evaluate import process_group
    from ppmn.model.folder import model_folder
    from ppmn.training.trainer import train

    config = training_config(args)
    init = model_folder(args.init) if args.init else None
    with process_group():
        train(config, args.data, args.out, init, args.cache, args.skip_bad, args.dry_run)


def ablate(args: argparse.Namespace) -> None:
    from ppmn.model.folder import model_folder
    from ppmn.training.ablation import ablate

    config, init = training_config(args), model_folder(args.init) if args.init else None
    ablate(args.table, config, args.data, args.test, args.out, args.seeds, args.values, init, args.cache)


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
