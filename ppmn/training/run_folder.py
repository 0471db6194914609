"""What a run writes to disk: checkpoints, which are written atomically, its log, its configuration."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppmn.errors import InputError
from ppmn.files import make_folder, read_json, replacing, write_json
from ppmn.training.tracking import LogKind, Tracker, open_tracker


@dataclass
class Progress:
    """The position of a run: after `step` steps of `epoch`."""

    epoch: int = 0
    step: int = 0  # within the epoch
    total: int = 0  # since the start
    best: float = -1.0
    unreadable: int = 0  # samples that could not be read


class RunFolder:
    """One run's folder: `train.json`, `log.jsonl`, `checkpoints/`, `best.pt`, and at the end the model."""

    def __init__(self, folder: Path, log_to: LogKind | None = None) -> None:
        self.folder, self.log_to = folder, log_to
        self.tracker: Tracker | None = None
        make_folder(folder / "checkpoints")

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Write the identity of the run, or refuse if the folder holds another run; open its curves."""
        file = self.folder / "train.json"
        wanted = json.loads(json.dumps(identity))
        if not file.is_file():
            write_json(file, wanted, indent=2)
        refuse_changes(self.folder, read_json(file), wanted)
        self.tracker = open_tracker(self.log_to, self.folder, wanted)

    def threads(self) -> int:
        """The number of threads that the run started with, 0 if it is new: other numbers give other bits."""
        file = self.folder / "train.json"
        return int(read_json(file)["threads"]) if file.is_file() else 0

    def checkpoints(self) -> list[Path]:
        """The checkpoints, the newest last."""
        return sorted((self.folder / "checkpoints").glob("[0-9]*.pt"))

    def save(self, progress: Progress, state: dict[str, Any], keep: int) -> None:
        """Write a checkpoint and delete all but the newest `keep`."""
        file = self.folder / "checkpoints" / f"{progress.total:08}.pt"
        with replacing(file) as part:
            torch.save({"progress": vars(progress), **state}, part)
        for old in self.checkpoints()[:-keep]:
            old.unlink()

    def newest(self) -> dict[str, Any] | None:
        """The newest checkpoint, if there is one."""
        files = self.checkpoints()
        return _read_checkpoint(files[-1]) if files else None

    def save_best(self, state: dict[str, Tensor]) -> None:
        """Write the weights of the best network so far."""
        with replacing(self.folder / "best.pt") as part:
            torch.save(state, part)

    def best(self) -> dict[str, Tensor] | None:
        """The weights of the best network so far, if there was a validation."""
        file = self.folder / "best.pt"
        return _read_checkpoint(file) if file.is_file() else None

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one JSON line, and points of curves where they are shown."""
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        if self.tracker is not None:
            values = {**line, **{f"validation/{k}": v for k, v in line.get("validation", {}).items()}}
            numbers = {name: value for name, value in values.items() if isinstance(value, float)}
            self.tracker(numbers, line["total"])

    def rewind_log(self, progress: Progress) -> None:
        """Remove the lines of steps and evaluations that will be repeated."""
        file = self.folder / "log.jsonl"
        if not file.is_file():
            return
        kept = []
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line cut off by a kill
                read_line = json.loads(line)
                repeated = "validation" in read_line and progress.step > 0  # its epoch is not over yet
                if read_line["total"] < progress.total + (not repeated):
                    kept.append(line)
        with replacing(file) as part:
            part.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def _read_checkpoint(file: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"{file} is not a checkpoint of a run ({type(error).__name__})") from error
    return state


def refuse_changes(folder: Path, found: Any, wanted: Any) -> None:
    """Refuse a folder whose run is not the one that is wanted, naming up to three fields that differ."""
    changed = sorted(_differences(found, wanted))
    if changed:
        shown = "; ".join(changed[:3])
        raise InputError(f"{folder} holds a run of another configuration ({shown}); choose another --out")


def _differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """Where two configurations differ, field by field."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in found.keys() | wanted.keys():
            yield from _differences(found.get(name), wanted.get(name), f"{where}.{name}" if where else name)
    elif found != wanted:
        yield f"{where} was {found} and is {wanted}"
