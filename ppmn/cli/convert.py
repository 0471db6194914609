"""Make a model folder from weights that others released.

Reads a released PPMN checkpoint, detectron2's panoptic FPN (.pkl), a torchvision ResNet or a BERT, or the
checkpoint of the two-stage baseline. What a file holds is recognised by its tensors; parts that no file
holds are initialised from scratch.
"""

import argparse
from pathlib import Path

from ppmn.cli.arguments import add_out
from ppmn.presets import PRESETS, ppmn_model

HELP = "convert released weights to a model folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=".pth, .pkl or .safetensors file")
    parser.add_argument("--text", metavar="BERT", help="folder, hub name or package:NAME of the text encoder")
    preset = "the configuration to start from (default: ppmn-released)"
    parser.add_argument("--preset", choices=PRESETS, default="ppmn-released", help=preset)
    pixels = "pixels per query, which checkpoints do not record (default: the preset's)"
    parser.add_argument("--pixels", type=int, metavar="S", help=pixels)
    add_out(parser, "the model folder to write")


def run(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from ppmn.convert.convert import convert_to_folder
    from ppmn.errors import InputError

    config = ppmn_model(PRESETS[args.preset]())
    if args.pixels is not None:
        config = replace(config, pixels=args.pixels)
    if (args.out / "config.json").exists():
        raise InputError(f"{args.out} is a model folder already; name another one")
    report = convert_to_folder(args.files, args.text, config, args.out)
    print("\n".join(report))
    print(f"written to {args.out}")
