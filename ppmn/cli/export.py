"""Write a model as ONNX graphs, which run without torch."""

import argparse

from ppmn.cli.arguments import add_model, add_out

HELP = "write a model as ONNX graphs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_out(parser, "folder of the graphs")
    add_model(parser)


def run(args: argparse.Namespace) -> None:
    from ppmn.grounding.onnx import export_onnx
    from ppmn.model.folder import load_model, model_folder

    for file in export_onnx(load_model(model_folder(args.model)), args.out):
        print(file)
