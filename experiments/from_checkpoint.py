"""Make a model folder from the moving average in a checkpoint of a run that was stopped.

python -m experiments.from_checkpoint RUN/checkpoints/00001500.pt --init MODEL -o OUT

MODEL is the model that the run started from: what the run did not train is taken from it, but for its
calibration, which does not fit other weights.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from ppmn.config import CalibrationConfig
from ppmn.model.folder import abbreviate, load_model, model_folder, save_model
from ppmn.training.schedule import copy_weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="a file of the run's folder checkpoints")
    parser.add_argument("--init", required=True, help="name or folder of the model that the run started from")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="the model folder")
    args = parser.parse_args()
    model = load_model(model_folder(args.init))
    state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    weights, parameters = state["average"] or state["trained"], dict(model.named_parameters())
    unknown = sorted(set(weights) - set(parameters))
    if unknown:
        parser.error(f"{args.checkpoint} has tensors that {args.init} lacks: {abbreviate(unknown)}")
    copy_weights(parameters, weights)
    model.config = replace(model.config, calibration=CalibrationConfig())
    save_model(model, args.out, half=True)
    print(f"{args.out}: {len(state['trained'])} trained tensors after step {state['progress']['total']}")


if __name__ == "__main__":
    main()
