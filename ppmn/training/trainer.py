"""Training: one visible loop, the same on a laptop and on many machines.

    ppmn train --preset scenes --data SCENES --out RUN
    ppmn train --preset paper --init CONVERTED --data PNG:train2017 --out RUN --cache CACHE
    torchrun --nproc-per-node 4 -m ppmn.cli train --preset released --init CONVERTED --data PNG --out RUN

Started again on the same folder it goes on where it was; on one process with the same number of threads
it ends with the same bits as a run that was never stopped, for all chance comes from (seed, epoch, number).
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from ppmn.config import ModelConfig, TrainConfig
from ppmn.data.narratives import Narrative
from ppmn.errors import InputError
from ppmn.model import folder as weights
from ppmn.model.dinov2 import DINOv2FPN
from ppmn.model.losses import RoundLoss, ppm_losses, total_loss
from ppmn.model.network import PPMN
from ppmn.training.dataset import (
    Bad,
    Item,
    TrainingSet,
    Truth,
    captions_of,
    epoch_batches,
    load,
    open_caches,
    photos_of,
)
from ppmn.training.run_folder import Progress, RunFolder
from ppmn.training.sources import open_sources
from ppmn.training.validation import validate, validation


@dataclass(frozen=True)
class World:
    """The processes that train together."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def here(cls) -> "World":
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if not torch.cuda.is_available():
            return cls(rank, size, torch.device("cpu"))
        torch.cuda.set_device(rank % torch.cuda.device_count())
        return cls(rank, size, torch.device("cuda", torch.cuda.current_device()))

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all processes."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.size > 1:
            dist.all_reduce(sums)
        return [float(value) for value in sums]


def train(
    config: TrainConfig,
    data: Sequence[str],
    out: Path,
    init: Path | None = None,
    cache: Path | None = None,
    skip_bad: int = 0,
    dry_run: bool = False,
) -> None:
    """Train a network as `config` says and leave it in `out`; a run that was stopped goes on.

    With `init`, `config.model` begins with `weights.read_config(init)`, whatever of it is then changed.
    """
    world, folder = World.here(), RunFolder(out)
    if config.precision == "bfloat16" and world.device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise InputError("precision is bfloat16, which this GPU does not compute in; set precision=float32")
    threads = folder.threads() or torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    model = start(config, init)
    sources = open_sources(data)
    if not dry_run and world.rank == 0:
        read = {s.name: {"fingerprint": s.fingerprint, "weight": s.weight} for s in sources}
        begun = weights.sha256(init / weights.MODEL_FILE) if init else ""
        about = {"threads": threads, "processes": world.size, "init": begun, "data": read}
        folder.claim({**about, "config": asdict(config)})
    data_set = TrainingSet(sources, config, model, open_caches(config, cache, model, sources))
    run = Trainer(config, world, model.to(world.device), data_set, folder, skip_bad)
    if dry_run:
        run.dry_run()
        return
    if (state := folder.newest()) is not None:
        run.restore(state)
    if world.rank == 0:
        folder.rewind_log(run.progress)
    run.fit(validation(sources, config))


def start(config: TrainConfig, init: Path | None) -> PPMN:
    """The network to begin with, fresh or another's; frozen parts take no gradient."""
    if init is not None:
        model = adapted(weights.load_model(init), config.model)
    elif config.lr_image == 0 and "image" not in weights.base_weights(config.model):
        raise InputError("the image encoder is frozen (lr_image is 0): give --init a model that has one")
    else:
        model = weights.build_model(config.model)
    model.get_submodule("image_encoder").requires_grad_(config.lr_image > 0)
    if isinstance(model.image_encoder, DINOv2FPN):
        if config.lr_image > 0 and not model.image_encoder.config.trainable_blocks:
            raise InputError("lr_image is above 0, but model.image.trainable_blocks is 0")
        model.image_encoder.vit.requires_grad_(False)
        model.image_encoder.trainable.requires_grad_(config.lr_image > 0)
        model.image_encoder.adapter.requires_grad_(True)
    model.text_encoder.requires_grad_(config.lr_text > 0)
    if config.model.pixels == 0:  # nothing is aggregated
        for refine in model.head.rounds:
            refine.aggregate.requires_grad_(False)
    return model


def adapted(model: PPMN, config: ModelConfig) -> PPMN:
    """A model under another configuration: its encoders, and of its head the tensors that still fit."""
    if model.config == config:
        return model
    changed = PPMN(weights.build_image_encoder(config), model.text_encoder, config)
    changed.text_encoder.query = config.query
    encoder = changed.get_submodule("image_encoder")
    weights.copy_tensors(
        encoder, model.get_submodule("image_encoder").state_dict(), "the model given to --init"
    )
    own = changed.head.state_dict()
    kept = {n: t for n, t in model.head.state_dict().items() if n in own and own[n].shape == t.shape}
    changed.head.load_state_dict(kept, strict=False)
    print(f"{len(own) - len(kept)} of the head's {len(own)} tensors start fresh")
    return changed


class Trainer:
    """A run in progress: the network, its optimizer, and how far it has come."""

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        model: PPMN,
        data: TrainingSet,
        folder: RunFolder,
        skip_bad: int = 0,
    ) -> None:
        self.config, self.world, self.model, self.data = config, world, model, data
        self.folder, self.skip_bad, self.progress = folder, skip_bad, Progress()
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.average = {n: p.detach().clone() for n, p in self.trained.items()} if config.ema_decay else {}
        decay = config.weight_decay
        self.optimizer = torch.optim.AdamW(self.groups(), lr=config.lr, weight_decay=decay, fused=True)
        self.network: nn.Module = model
        if world.size > 1:
            # small buckets: one gradient travels while the next is computed
            self.network = DistributedDataParallel(model, bucket_cap_mb=2, gradient_as_bucket_view=True)
        self.batch = config.batch_size * (world.size if config.per_process else 1)
        if self.batch < world.size:
            raise InputError(f"a batch of {self.batch} cannot be shared by {world.size} processes")

    def groups(self) -> list[dict[str, Any]]:
        """Parameters by their rate: the head's, the text encoder's, the image encoder's."""
        config = self.config
        rates = {
            "head": config.lr,
            "image_encoder.adapter": config.lr,  # what is new learns as the head does
            "text_encoder": config.lr_text,
            "image_encoder": config.lr_image,
        }
        left, groups = dict(self.trained), []
        for part, rate in rates.items():
            mine = [left.pop(name) for name in list(left) if name.startswith(f"{part}.")]
            if mine:
                groups.append({"params": mine, "base": rate, "part": part})
        return groups

    def fit(self, held: Mapping[str, Sequence[Narrative]]) -> None:
        """All epochs that are left: step, keep, evaluate; in the end the best network."""
        config, progress, first = self.config, self.progress, self.world.rank == 0
        for epoch in range(progress.epoch, config.epochs):
            self.one_epoch(epoch)
            progress.epoch, progress.step = epoch + 1, 0
            if held and (progress.epoch % config.evaluate_every == 0 or progress.epoch == config.epochs):
                self.evaluate(held)
            self.save()
        if first:
            self.finish()

    def one_epoch(self, epoch: int) -> None:
        """The steps of an epoch that are left."""
        config, progress, first = self.config, self.progress, self.world.rank == 0
        batches = epoch_batches(self.data, epoch, self.batch)
        mine = [batch[self.world.rank :: self.world.size] for batch in batches]
        reading = load(self.data, epoch, mine[progress.step :])
        title = f"epoch {epoch + 1}/{config.epochs}"
        with tqdm(total=len(batches), initial=progress.step, desc=title, disable=not first) as bar:
            for found in reading:
                line = self.step(self.readable(found), len(batches) * config.epochs)
                bar.set_postfix(loss=f"{line['loss']:.3f}")
                bar.update()
                if first:
                    self.folder.log(line)
                if progress.total % config.checkpoint_every == 0:
                    self.save()

    def readable(self, found: Sequence[Item | Bad]) -> list[Item]:
        """The samples that could be read; more bad ones than allowed end the run."""
        for bad in found:
            if isinstance(bad, Bad):
                self.progress.bad += 1
                count = self.progress.bad
                if count > self.skip_bad:
                    raise InputError(f"{bad.reason}; {count} bad samples, {self.skip_bad} are allowed")
                tqdm.write(f"left out: {bad.reason}")
        items = [item for item in found if isinstance(item, Item)]
        if not items:
            raise InputError("none of a batch's photos could be read")
        return items

    def step(self, items: list[Item], steps: int) -> dict[str, Any]:
        """One step of the optimizer, on this process's share of a batch."""
        config, progress, started = self.config, self.progress, time.perf_counter()
        torch.manual_seed((config.seed * 1_000_003 + progress.total) * 1_009 + self.world.rank)
        self.set_modes()
        self.set_rates(steps)
        parts = [part for n in range(config.accumulate) if (part := items[n :: config.accumulate])]
        truths = [Truth.of(part, config) for part in parts]
        rows, pixels = float(sum(len(t.Y) for t in truths)), sum(t.pixels for t in truths)
        if not config.per_process:
            rows, pixels = self.world.sum(rows, pixels)
        times = 1 if config.per_process else self.world.size  # DDP takes the mean over processes
        self.optimizer.zero_grad(set_to_none=True)
        bce = dice = 0.0
        for number, (part, truth) in enumerate(zip(parts, truths, strict=True), 1):
            with self.exchange(number == len(parts)):
                losses = self.losses(part, truth, pixels, rows)
                (total_loss(losses) * times).backward()
            bce += sum(float(loss.bce.detach()) for loss in losses)
            dice += sum(float(loss.dice.detach()) for loss in losses)
        bce, dice = (
            value / (self.world.size if config.per_process else 1) for value in self.world.sum(bce, dice)
        )
        if not math.isfinite(bce + dice):
            photos = ", ".join(item.name for item in items)
            raise InputError(f"the loss is {bce + dice} at step {progress.total} on the photos {photos}")
        self.update()
        seconds = round(time.perf_counter() - started, 3)
        about = {"total": progress.total, "epoch": progress.epoch, "rows": rows, "seconds": seconds}
        return {
            **about,
            "loss": bce + dice,
            "bce": bce,
            "dice": dice,
            "lr": self.optimizer.param_groups[0]["lr"],
        }

    def losses(self, items: Sequence[Item], truth: Truth, pixels: float, rows: float) -> list[RoundLoss]:
        device, dtype = self.world.device, next(self.model.head.parameters()).dtype
        photos = photos_of(items, self.model, self.data.caches.image, device)
        captions = captions_of(items, self.model, self.data.caches.text, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            maps, _ = self.network(photos, captions)
        known = None if truth.known is None else truth.known.to(device, dtype)
        H = [h.to(dtype) for h in maps.H]
        return ppm_losses(H, truth.Y.to(device, dtype), self.config.model, known, pixels, rows)

    def exchange(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are exchanged between processes once a step, after its last part."""
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()

    def set_modes(self) -> None:
        self.model.train()
        self.model.get_submodule("image_encoder").train(self.config.lr_image > 0)
        self.model.text_encoder.train(self.config.text_dropout)

    def set_rates(self, steps: int) -> None:
        """The learning rates of this step; under `halving` the text encoder's stays as it is."""
        config, progress = self.config, self.progress
        warm = min(1.0, (progress.total + 1) / config.warmup) if config.warmup else 1.0
        if config.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * min(progress.total / max(steps, 1), 1)))
        else:
            factor = 0.5 ** max(0, (progress.epoch - config.halve_from) // config.halve_every + 1)
        for group in self.optimizer.param_groups:
            keeps = config.schedule == "halving" and group["part"] == "text_encoder"
            group["lr"] = group["base"] * warm * (1.0 if keeps else factor)

    def update(self) -> None:
        if self.config.max_grad_norm:
            nn.utils.clip_grad_norm_(list(self.trained.values()), self.config.max_grad_norm)
        self.optimizer.step()
        self.progress.step, self.progress.total = self.progress.step + 1, self.progress.total + 1
        if self.average:
            decay = min(self.config.ema_decay, (1 + self.progress.total) / (10 + self.progress.total))
            with torch.no_grad():
                for name, parameter in self.trained.items():
                    self.average[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The network with the moving average of its weights, where there is one."""
        own = {name: p.detach().clone() for name, p in self.trained.items()} if self.average else {}
        self.put(self.average)
        try:
            yield
        finally:
            self.put(own)

    @torch.no_grad()
    def put(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, value in state.items():
            self.trained[name].copy_(value)

    def evaluate(self, held: Mapping[str, Sequence[Narrative]]) -> None:
        """Measure on the validation photos; the best network so far is kept."""
        self.model.eval()
        with self.averaged():
            sheet = self.folder.folder / f"epoch-{self.progress.epoch:03}.png"
            score = validate(self.model, held, sheet if self.world.rank == 0 else None)
            if self.world.rank == 0:
                about = {"total": self.progress.total, "epoch": self.progress.epoch}
                self.folder.log({**about, "validation": score})
                figures = ", ".join(
                    f"{name} {value:.1f}" for name, value in score.items() if value is not None
                )
                print(f"epoch {self.progress.epoch}: Average Recall (full) {figures}; shown in {sheet.name}")
            overall = score["overall"] or 0.0
            if overall > self.progress.best:
                self.progress.best = overall
                if self.world.rank == 0:
                    self.folder.save_best(
                        {name: p.detach().cpu().clone() for name, p in self.trained.items()}
                    )

    def save(self) -> None:
        if self.world.rank == 0:
            state = {
                "trained": {name: p.detach() for name, p in self.trained.items()},
                "average": self.average,
                "optimizer": self.optimizer.state_dict(),
            }
            self.folder.save(self.progress, state, self.config.keep_checkpoints)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of this very run."""
        self.progress = Progress(**state["progress"])
        if set(state["trained"]) != set(self.trained):
            raise InputError(f"the checkpoint in {self.folder.folder} is of another network")
        self.put(state["trained"])
        self.average = {name: value.to(self.world.device) for name, value in state["average"].items()}
        self.optimizer.load_state_dict(state["optimizer"])

    def finish(self) -> None:
        """Leave the best network by validation, or the last one where there was none."""
        best = self.folder.best()
        with self.averaged():
            if best is not None:
                self.put(best)
            weights.save_model(self.model, self.folder.folder)
        print(f"the network is in {self.folder.folder}")

    def dry_run(self) -> None:
        """One step, to see that everything fits, and what the whole would take."""
        batches = epoch_batches(self.data, 0, self.batch)
        mine = [batch[self.world.rank :: self.world.size] for batch in batches[:1]]
        started = time.perf_counter()
        (items,) = (self.readable(found) for found in load(self.data, 0, mine))
        read = time.perf_counter() - started
        self.step(items, len(batches) * self.config.epochs)
        line = self.step(items, len(batches) * self.config.epochs)
        steps = len(batches) * self.config.epochs
        print(f"{len(self.data):,} samples, {len(batches):,} steps an epoch, {steps:,} in all")
        print(f"a step takes {line['seconds']:.2f} s after {read:.2f} s of reading; loss {line['loss']:.3f}")
        hours = steps * line["seconds"] / 3600
        print(f"{peak_memory()}the whole run about {hours:.1f} hours")


def peak_memory() -> str:
    """The most memory that this process has held; Windows does not tell."""
    try:
        import resource
    except ImportError:
        return ""
    unit = 1e9 if sys.platform == "darwin" else 1e6  # macOS counts bytes, Linux kilobytes
    return f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.1f} GB; "
