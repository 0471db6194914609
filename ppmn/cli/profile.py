"""Count the parameters and multiply-adds of each part of a network, beside those of the released code."""

import argparse

from ppmn.cli.arguments import parse_size
from ppmn.presets import PRESETS, ppmn_model

HELP = "count parameters and multiply-adds by part"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    preset = "a configuration (default: ppmn-released)"
    which.add_argument("--preset", choices=PRESETS, default="ppmn-released", help=preset)
    which.add_argument("--model", help="name or folder of a model")
    size = "height and width of the resized image (default: 800x1216)"
    parser.add_argument("--size", type=parse_size, default=(800, 1216), metavar="HxW", help=size)
    parser.add_argument("--phrases", type=int, default=30, metavar="N", help="matched queries (default: 30)")
    parser.add_argument("--pieces", type=int, default=64, metavar="T", help="word pieces (default: 64)")


def run(args: argparse.Namespace) -> None:
    from ppmn.model import profile as cost
    from ppmn.model.folder import load_model, model_folder

    if args.model:
        model = load_model(model_folder(args.model)).to("meta")
        config, encoder, bert = model.config, model.image_encoder, model.text_encoder.bert
    else:
        config = ppmn_model(PRESETS[args.preset]())
        encoder, bert = cost.encoders_without_weights(config)
    found = cost.profile(config, encoder, bert, args.size, args.phrases, args.pieces)
    print(f"{found.table()}\n\n{cost.claims()}")
