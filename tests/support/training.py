"""Small training runs."""

from dataclasses import replace
from pathlib import Path

import torch
from support.models import small_config

from ppmn.config import TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.presets import PRESETS
from ppmn.training.dataset import Item, TrainingSet, epoch_batches, read_batches
from ppmn.training.encoder_inputs import open_caches
from ppmn.training.initial import initial_model
from ppmn.training.run_folder import RunFolder
from ppmn.training.sources import open_training_sources
from ppmn.training.trainer import Trainer

SMALL = (
    "model.image.width=8",
    "model.image.channels=32",
    "model.short_side=64",
    "model.long_side=96",
    "model.channels=32",
    "model.rounds=1",
    "model.pixels=8",
    "warmup=0",
    "workers=0",
    "validation_fraction=0.2",
    "validation_images=4",
    "checkpoint_every=2",
)


def arguments(scenes: Path, text: Path, out: Path, *more: str) -> list[str]:
    """The command line of a small run."""
    fields = [f"--set={field}" for field in (*SMALL, f"model.text.source={text}")]
    return [
        "train",
        "--preset",
        "scenes",
        "--data",
        str(scenes),
        "--out",
        str(out),
        "--batch-size",
        "4",
        *fields,
        *more,
    ]


def tiny(text: Path, **changes: object) -> TrainConfig:
    """The configuration of a small run."""
    plain = {
        "batch_size": 4,
        "workers": 0,
        "validation_fraction": 0.0,
        "max_grad_norm": 0.0,
        "small_epochs": 0,
    }
    return replace(PRESETS["scenes"](), **{"model": small_config(text), **plain, **changes})  # type: ignore[arg-type]


def small_run(config: TrainConfig, scenes: Path, folder: Path, cache: Path | None = None) -> Trainer:
    """A trainer with a new network, without a cache unless a folder is given."""
    torch.manual_seed(0)
    model, sources = initial_model(config), open_training_sources([DataSpec(scenes)])
    data = TrainingSet(sources, config, model, open_caches(config, cache, model, sources))
    return Trainer(config, model, data, RunFolder(folder))


def items(run: Trainer, epoch: int = 0, batch: int = 0) -> list[Item]:
    """One batch of a run."""
    numbers = epoch_batches(run.data, epoch, run.batch_size)[batch]
    return run.readable(next(read_batches(run.data, epoch, [numbers])))
