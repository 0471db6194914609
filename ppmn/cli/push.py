"""Upload a model folder to the Hugging Face hub, with a card written from its run."""

import argparse

HELP = "upload a model to the Hugging Face hub"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the model folder")
    parser.add_argument("name", metavar="OWNER/NAME", help="its name on the hub")
    parser.add_argument("--private", action="store_true", help="make a new repository private")


def run(args: argparse.Namespace) -> None:
    from ppmn.training.publish import push_to_hub

    print(push_to_hub(args.folder, args.name, private=args.private))
