"""Where the curves of a run are shown: TensorBoard, Weights & Biases, or nowhere."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ppmn.errors import InputError

LogKind = Literal["wandb", "tensorboard", "none"]
Tracker = Callable[[Mapping[str, float], int], None]  # values by name, and the step they belong to


def open_tracker(kind: LogKind | None, folder: Path, identity: Mapping[str, Any]) -> Tracker | None:
    """A tracker of one kind; None takes TensorBoard if it is installed."""
    if kind == "none":
        return None
    if kind == "wandb":
        return _open_wandb(folder, identity)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        if kind is None:
            return None
        raise InputError("tensorboard is not installed: pip install 'ppmn[train]'") from error
    writer = SummaryWriter(str(folder / "tensorboard"))

    def track(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return track


def _open_wandb(folder: Path, identity: Mapping[str, Any]) -> Tracker:
    """A run of the project `ppmn`; a training run that continues continues it."""
    try:
        import wandb
    except ImportError as error:
        raise InputError("wandb is not installed: pip install 'ppmn[wandb]'") from error
    id = hashlib.sha256(f"{folder.resolve()} {identity!r}".encode()).hexdigest()[:16]
    place, config = str(folder), dict(identity)
    run = wandb.init(project="ppmn", name=folder.name, id=id, resume="allow", dir=place, config=config)

    def track(values: Mapping[str, float], step: int) -> None:
        run.log(dict(values), step=step)

    return track
