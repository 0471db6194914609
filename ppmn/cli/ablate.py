"""Train and measure the cells of the paper's ablation tables."""

import argparse

from ppmn.cli.arguments import add_out, parse_spec
from ppmn.cli.train import add_training_arguments, training_config

HELP = "the paper's ablation tables"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser)
    add = parser.add_argument
    add("--table", required=True, choices=("pixels", "rounds", "aggregation"), help="which table")
    add("--values", nargs="+", default=[], help="some of the table's rows, such as 0 200 (default: all)")
    test = "data set to measure on; repeatable"
    add("--test", action="append", required=True, metavar="ROOT[:SPLIT]", help=test)
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run per seed (default: 0 1 2)")
    add_out(parser, "folder of the runs and tables")


def run(args: argparse.Namespace) -> None:
    from ppmn.model.folder import model_folder
    from ppmn.training.ablation import ablate

    table = ablate(
        args.table,
        training_config(args),
        [parse_spec(text) for text in args.data],
        [parse_spec(text) for text in args.test],
        args.out,
        seeds=args.seeds,
        values=args.values,
        init=model_folder(args.init) if args.init else None,
        cache=args.cache,
    )
    print(table)
