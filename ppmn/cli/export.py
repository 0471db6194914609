"""Write a model as ONNX graphs, with which it runs without torch."""

import argparse

from ppmn.cli.arguments import add_model, add_out

HELP = "write a model as ONNX graphs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    out = "folder of graphs with weights, for other programs (default: without, into the model's folder)"
    add_out(parser, out, required=False)
    add_model(parser)


def run(args: argparse.Namespace) -> None:
    from ppmn.grounding.onnx import add_graphs, export_onnx
    from ppmn.model.folder import load_model
    from ppmn.model.locate import model_folder

    folder = model_folder(args.model)
    files = add_graphs(folder) if args.out is None else export_onnx(load_model(folder), args.out)
    for file in files:
        print(file)
