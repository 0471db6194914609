"""Train a network, or continue a run."""

import argparse
from pathlib import Path
from typing import Any

from ppmn.cli.arguments import add_engine, add_out, add_threads, check_engine, parse_spec, pool_options
from ppmn.errors import InputError

HELP = "train a network, or continue a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser)
    add_out(parser, "the run's folder")
    add = parser.add_argument
    add("--seed", type=int, help="seed of the run (default: the preset's)")
    add("--skip-bad", type=int, default=0, metavar="N", help="skip up to N images that cannot be read")
    log = "where curves are shown (default: tensorboard if it is installed)"
    add("--log", choices=("wandb", "tensorboard", "none"), help=log)
    add("--dry-run", action="store_true", help="check data and memory, take two steps; estimate the time")
    add_engine(parser)
    add_threads(parser, "1 for each actor; with --engine ray only --cache is filled, and nothing is trained")


def add_training_arguments(sub: argparse.ArgumentParser) -> None:
    """What `ppmn train` and `ppmn ablate` share."""
    add = sub.add_argument
    presets = "paper, compact, mcn-small or another, a wrong name lists all; finetune by default with --init"
    add("--preset", help=presets)
    data = "data set to train on; repeatable; each image is used WEIGHT times an epoch, 0.2: a random fifth"
    add("--data", action="append", required=True, metavar="ROOT[:SPLIT][=WEIGHT]", help=data)
    add("--init", metavar="MODEL", help="name, folder or hub name of a model to start from")
    add("--cache", type=Path, metavar="DIR", help="keep the outputs of frozen encoders")
    add("--epochs", type=int, help="number of epochs (default: the preset's)")
    add("--batch-size", type=int, help="images per step (default: the preset's)")
    change = "change any field of the configuration, as model.rounds=2; repeatable"
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help=change)


def training_config(args: argparse.Namespace) -> Any:
    """The configuration that the arguments describe."""
    from dataclasses import replace

    from ppmn.baselines.recipes import BASELINE_PRESETS
    from ppmn.config import CalibrationConfig
    from ppmn.grounding.methods import METHODS
    from ppmn.model.folder import config_types, model_folder, read_config
    from ppmn.presets import PRESETS, override

    presets = {**PRESETS, **BASELINE_PRESETS}
    preset = args.preset or ("finetune" if args.init else None)
    if preset not in presets:
        wrong = f"there is no preset {preset!r}" if preset else "--preset is missing (--init needs none)"
        raise InputError(f"{wrong}; there are {', '.join(presets)}")
    config = presets[preset]()
    if preset == "finetune" and not args.init:
        raise InputError("the preset finetune trains a model further: give it with --init")
    if args.init:  # what was fitted to its weights does not fit those of the new model
        model = read_config(model_folder(args.init), config_types(METHODS))
        model = replace(model, calibration=CalibrationConfig())
        config = replace(config, model=model if preset == "finetune" else _started(config.model, model))
    short = {name: getattr(args, name, None) for name in ("epochs", "batch_size", "seed")}
    fields = [f"{name}={value}" for name, value in short.items() if value is not None]
    for text in [*fields, *args.set]:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}: it must be FIELD=VALUE")
        config = override(config, name, value)
    return config


def _started(ours: Any, theirs: Any) -> Any:
    """The configuration of a model given to --init; of another method only what both share."""
    from dataclasses import replace

    if ours.method == theirs.method:
        return theirs
    shared = ("image", "text", "short_side", "long_side", "pointing")
    return replace(ours, **{n: getattr(theirs, n) for n in shared if hasattr(ours, n) and hasattr(theirs, n)})


def run(args: argparse.Namespace) -> None:
    from ppmn.distributed import process_group
    from ppmn.model.folder import model_folder
    from ppmn.training.trainer import train

    config = training_config(args)
    check_engine(args, "threads")
    if args.engine == "ray":
        return _fill_cache(args, config)
    with process_group():
        train(
            config,
            [parse_spec(text) for text in args.data],
            args.out,
            init=model_folder(args.init) if args.init else None,
            cache=args.cache,
            skip_bad=args.skip_bad,
            dry_run=args.dry_run,
            log_to=args.log,
        )


def _fill_cache(args: argparse.Namespace, config: Any) -> None:
    from ppmn.model.folder import model_folder
    from ppmn.training.fill_cache import fill_cache

    if args.cache is None:
        raise InputError("--engine ray fills the cache of a run: name its folder with --cache DIR")
    specs = [parse_spec(text) for text in args.data]
    init = model_folder(args.init) if args.init else None
    samples = fill_cache(config, specs, args.cache, pool_options(args, 1), init=init)
    print(f"{args.cache} has the features of {samples} samples; nothing was trained")
