"""Training: one visible loop, the same on a laptop and on many machines.

A run that is started again on its folder continues. On one process, with the same number of threads, it
ends with the same bits as a run that was never stopped: all randomness comes from (seed, epoch, number).
"""

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from ppmn.config import TrainConfig
from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import DataSpec
from ppmn.distributed import (
    is_main_process,
    process_count,
    process_device,
    process_rank,
    sum_over_processes,
)
from ppmn.errors import InputError
from ppmn.model.bfloat16 import require_bfloat16
from ppmn.model.folder import MODEL_FILE, save_model, sha256
from ppmn.model.method import Method, MethodLoss
from ppmn.training.dataset import Item, TrainingSet, UnreadableSample, epoch_batches, read_batches
from ppmn.training.encoder_inputs import StepTargets, open_caches, step_targets, training_batch
from ppmn.training.initial import initial_model
from ppmn.training.interrupt import held_interrupt
from ppmn.training.run_folder import Progress, RunFolder
from ppmn.training.schedule import (
    WeightAverage,
    batch_statistics,
    copy_weights,
    learning_rate,
    parameter_groups,
)
from ppmn.training.sources import open_training_sources
from ppmn.training.tracking import LogKind
from ppmn.training.validation import validate, validation_narratives

_log = logging.getLogger(__name__)


def train(
    config: TrainConfig,
    specs: Sequence[DataSpec],
    out: Path,
    *,
    init: Path | None = None,
    cache: Path | None = None,
    skip_bad: int = 0,
    dry_run: bool = False,
    log_to: LogKind | None = None,
) -> None:
    """Train a network and write it to `out`; a run that was stopped continues.

    With `init`, start from `read_config(init)` and change fields of it: `config.model` is compared with it.
    """
    folder, device = RunFolder(out, log_to), process_device()
    if config.precision == "bfloat16":
        require_bfloat16(device)
    threads = folder.threads() or torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    model = initial_model(config, init)
    sources = open_training_sources(specs)
    if not dry_run and is_main_process():
        data = {s.name: {"fingerprint": s.fingerprint, "weight": s.weight} for s in sources}
        start = sha256(init / MODEL_FILE) if init else ""
        identity = {"threads": threads, "processes": process_count(), "init": start, "data": data}
        folder.claim({**identity, "config": asdict(config)})
    data_set = TrainingSet(sources, config, model, open_caches(config, cache, model, sources))
    trainer = Trainer(config, model.to(device), data_set, folder, skip_bad=skip_bad)
    if dry_run:
        trainer.dry_run()
        return
    trainer.resume()
    trainer.fit(validation_narratives(sources, config))


class Trainer:
    """One run: its network, data, optimizer and progress."""

    def __init__(
        self, config: TrainConfig, model: Method, data: TrainingSet, folder: RunFolder, *, skip_bad: int = 0
    ) -> None:
        self.config, self.model, self.data, self.folder = config, model, data, folder
        self.skip_bad, self.progress, self.device = skip_bad, Progress(), process_device()
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.statistics = batch_statistics(model)
        self.average = WeightAverage(self.trained, config.ema_decay)
        groups = parameter_groups(config, self.trained)
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=True)
        self.network: nn.Module = model
        processes = process_count()
        if processes > 1:
            # small buckets: one gradient travels while the next is computed
            self.network = DistributedDataParallel(model, bucket_cap_mb=2, gradient_as_bucket_view=True)
        self.batch_size = config.batch_size * (processes if config.per_process else 1)
        if self.batch_size < processes:
            raise InputError(f"a batch of {self.batch_size} cannot be shared by {processes} processes")

    def fit(self, held_out: Mapping[str, Sequence[Narrative]]) -> None:
        """Train all epochs that are left, evaluate between them, and write the best network."""
        config, progress = self.config, self.progress
        for epoch in range(progress.epoch, config.epochs):
            self.one_epoch(epoch)
            self.save()  # an evaluation may take long and be interrupted
            progress.epoch, progress.step = epoch + 1, 0
            last = progress.epoch == config.epochs
            if held_out and (last or progress.epoch % config.evaluate_every == 0):
                self.evaluate(held_out)
            self.save()
        if is_main_process():
            self.finish()

    def one_epoch(self, epoch: int) -> None:
        """Train the steps of an epoch that are left; Ctrl-C saves the last one and leaves."""
        config, progress = self.config, self.progress
        batches = epoch_batches(self.data, epoch, self.batch_size)
        mine = [batch[process_rank() :: process_count()] for batch in batches[progress.step :]]
        title, hidden = f"epoch {epoch + 1}/{config.epochs}", None if is_main_process() else True
        bar = tqdm(total=len(batches), initial=progress.step, desc=title, disable=hidden)
        with held_interrupt() as interrupted, bar:
            for samples in read_batches(self.data, epoch, mine):
                line = self.step(self.readable(samples), len(batches) * config.epochs)
                bar.set_postfix(loss=f"{line['loss']:.3f}")
                bar.update()
                if is_main_process():
                    self.folder.log(line)
                (stop,) = sum_over_processes(interrupted())
                if stop or progress.total % config.checkpoint_every == 0:
                    self.save()
                if stop:
                    raise KeyboardInterrupt(f"step {progress.total} is saved; the same command continues")

    def step(self, items: list[Item], steps: int) -> dict[str, Any]:
        """One optimizer step on this process's part of a batch, of `steps` in all; a line for the log."""
        config, progress, started = self.config, self.progress, (time.perf_counter(), time.process_time())
        torch.manual_seed((config.seed * 1_000_003 + progress.total) * 1_009 + process_rank())
        self.set_modes()
        self.set_rates(steps)
        batches = [part for n in range(config.accumulate) if (part := items[n :: config.accumulate])]
        targets = step_targets(batches, config)
        self.optimizer.zero_grad(set_to_none=True)
        terms: dict[str, float] = {}
        scale = 1 if config.per_process else process_count()  # DDP takes the mean over processes
        for number, (batch, target) in enumerate(zip(batches, targets, strict=True), 1):
            with self.gradient_sync(number == len(batches)):
                loss = self.loss(batch, target)
                (loss.total * scale).backward()
            for name, value in loss.terms.items():
                terms[name] = terms.get(name, 0.0) + value
        means = process_count() if config.per_process else 1
        sums = sum_over_processes(*terms.values())
        terms = {name: value / means for name, value in zip(terms, sums, strict=True)}
        total = sum(terms.values())
        if not math.isfinite(total):
            names = ", ".join(item.name for item in items)
            raise InputError(f"the loss is {total} at step {progress.total} on the images {names}")
        self.update()
        line = {"total": progress.total, "epoch": progress.epoch, "rows": targets[0].rows}
        line |= {"seconds": round(time.perf_counter() - started[0], 3), "loss": total}
        line |= {"core_seconds": round(time.process_time() - started[1], 3)}
        return line | terms | {"lr": self.optimizer.param_groups[0]["lr"]}

    def loss(self, items: Sequence[Item], targets: StepTargets) -> MethodLoss:
        """The loss of a part of a batch, as part of the loss of the whole step."""
        batch = training_batch(self.model, self.data.caches, items, targets, self.config.precision)
        return self.model.loss(batch, self.network)

    def readable(self, samples: Sequence[Item | UnreadableSample]) -> list[Item]:
        """The samples that could be read; more unreadable ones than allowed end the run."""
        for sample in samples:
            if isinstance(sample, UnreadableSample):
                self.progress.unreadable += 1
                count = self.progress.unreadable
                if count > self.skip_bad:
                    raise InputError(f"{sample.reason}; {count} bad samples, {self.skip_bad} are allowed")
                _log.warning(f"skipped: {sample.reason}")
        items = [sample for sample in samples if isinstance(sample, Item)]
        if not items:
            raise InputError("no image of a batch could be read")
        return items

    def gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Processes exchange gradients once per step, after its last part."""
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()

    def set_modes(self) -> None:
        self.model.train()
        self.model.get_submodule("image_encoder").train(self.config.lr_image > 0)
        self.model.text_encoder.train(self.config.text_dropout)

    def set_rates(self, steps: int) -> None:
        """Set the learning rates of the next step, of `steps` in all."""
        epoch, step = self.progress.epoch, self.progress.total
        for group in self.optimizer.param_groups:
            part, base = group["part"], group["base"]
            group["lr"] = learning_rate(self.config, part, base, epoch=epoch, step=step, steps=steps)

    def update(self) -> None:
        """Apply the gradients."""
        if self.config.max_grad_norm:
            nn.utils.clip_grad_norm_(list(self.trained.values()), self.config.max_grad_norm)
        self.optimizer.step()
        self.progress.step, self.progress.total = self.progress.step + 1, self.progress.total + 1
        self.average.update(self.progress.total)

    def evaluate(self, held_out: Mapping[str, Sequence[Narrative]]) -> None:
        """Measure on the images held out; the best network so far is saved."""
        progress, main = self.progress, is_main_process()
        self.model.eval()
        with self.average.applied():
            sheet = self.folder.folder / f"epoch-{progress.epoch:03}.png"
            recall = validate(self.model, held_out, sheet if main else None)
            if main:
                line = {"total": progress.total, "epoch": progress.epoch, "validation": recall}
                self.folder.log(line)
                figures = ", ".join(f"{name} {v:.1f}" for name, v in recall.items() if v is not None)
                _log.info(f"epoch {progress.epoch}: Average Recall (full) {figures}; shown in {sheet.name}")
            overall = recall["overall"] or 0.0
            if overall > progress.best:
                progress.best = overall
                if main:
                    own = {**self.trained, **self.statistics}
                    weights = {name: p.detach().cpu().clone() for name, p in own.items()}
                    self.folder.save_best(weights)

    def save(self) -> None:
        """Write a checkpoint."""
        if is_main_process():
            state = {
                "trained": {name: p.detach() for name, p in self.trained.items()},
                "average": self.average.values,
                "statistics": self.statistics,
                "optimizer": self.optimizer.state_dict(),
            }
            self.folder.save(self.progress, state, self.config.keep_checkpoints)

    def resume(self) -> None:
        """Continue from the newest checkpoint of this run, if there is one."""
        state = self.folder.newest()
        if state is not None:
            self.progress = Progress(**state["progress"])
            if set(state["trained"]) != set(self.trained):
                raise InputError(f"the checkpoint in {self.folder.folder} is of another network")
            copy_weights(self.trained, state["trained"])
            copy_weights(self.statistics, state.get("statistics", {}))  # none in older checkpoints
            self.average.values = {name: v.to(self.device) for name, v in state["average"].items()}
            self.optimizer.load_state_dict(state["optimizer"])
        if is_main_process():
            self.folder.rewind_log(self.progress)

    def finish(self) -> None:
        """Write the best network by validation, or the last one if there was no validation."""
        with self.average.applied():
            copy_weights({**self.trained, **self.statistics}, self.folder.best() or {})
            save_model(self.model, self.folder.folder)
        _log.info(f"the network is in {self.folder.folder}")

    def dry_run(self) -> None:
        """Two steps, to see that everything fits and what the whole run would take."""
        batches = epoch_batches(self.data, 0, self.batch_size)
        steps = len(batches) * self.config.epochs
        started = time.perf_counter()
        (samples,) = read_batches(self.data, 0, [batches[0][process_rank() :: process_count()]])
        items, reading = self.readable(samples), time.perf_counter() - started
        self.step(items, steps)
        line = self.step(items, steps)
        seconds, loss = line["seconds"], line["loss"]
        _log.info(f"{len(self.data):,} samples, {len(batches):,} steps per epoch, {steps:,} in all")
        _log.info(f"a step takes {seconds:.2f} s after {reading:.2f} s of reading; loss {loss:.3f}")
        _log.info(f"{peak_memory()}the whole run about {steps * seconds / 3600:.1f} hours")


def peak_memory() -> str:
    """The peak memory of this process, as text; Windows does not report it."""
    try:
        import resource
    except ImportError:
        return ""
    unit = 1e9 if sys.platform == "darwin" else 1e6  # macOS counts bytes, Linux kilobytes
    return f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.1f} GB; "
