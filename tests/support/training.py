"""Small training runs that tests make for themselves."""

from dataclasses import replace
from pathlib import Path

import torch
from support.models import small_config

from ppmn.config import TrainConfig
from ppmn.presets import PRESETS
from ppmn.training.dataset import Item, TrainingSet, epoch_batches, load
from ppmn.training.feature_cache import Caches
from ppmn.training.run_folder import RunFolder
from ppmn.training.sources import open_sources
from ppmn.training.trainer import Trainer, World, start

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
    plain = {
        "batch_size": 4,
        "workers": 0,
        "validation_fraction": 0.0,
        "max_grad_norm": 0.0,
        "small_epochs": 0,
    }
    return replace(PRESETS["scenes"](), **{"model": small_config(text), **plain, **changes})  # type: ignore[arg-type]


def a_run(config: TrainConfig, scenes: Path, folder: Path, caches: Caches | None = None) -> Trainer:
    torch.manual_seed(0)
    model = start(config, None)
    data = TrainingSet(open_sources([str(scenes)]), config, model, caches or Caches())
    return Trainer(config, World.here(), model, data, RunFolder(folder))


def items(run: Trainer, epoch: int = 0, batch: int = 0) -> list[Item]:
    numbers = epoch_batches(run.data, epoch, run.batch)[batch]
    return run.readable(next(load(run.data, epoch, [numbers])))
