"""Images per second of the Ray engine with one and two actors against the plain loop, and its peak memory.

    python -m bench.corpus                        # compact on 60 images, a random model on 400
    python -m bench.corpus --images 8 --random 40
    python -m bench.corpus --parts growth         # one part of it, of random, growth, compact and costs
    python -m bench.corpus --parts compact --actors 1

Starting Ray and loading the model are not counted: the clock of the plain loop starts after its first image,
that of the engine with its first shards. CPU seconds per image tell more than the rate on a busy machine.
"""

import argparse
import hashlib
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

import ppmn
from ppmn.config import ModelConfig, ResNetConfig, TextConfig
from ppmn.grounding.corpus_pool import PoolOptions, connected
from ppmn.grounding.corpus_run import corpus
from ppmn.grounding.corpus_shards import ResultFolder, ShardInfo, phrase_rows
from ppmn.images import read_image
from ppmn.model.folder import build_model, save_model
from ppmn.model.locate import MODEL_PREFIX

CAPTION = "In this image there are two dogs on the green grass, and a red ball under the blue sky."
SIZES = ((480, 640), (640, 480), (427, 640), (600, 400))
SHARD_SIZE = 4
PARTS = ("random", "growth", "compact", "costs")


@dataclass(frozen=True)
class Speed:
    """Images per second, CPU seconds per image, and the peak memory in MB."""

    rate: float
    cpu: float
    memory: float

    def __str__(self) -> str:
        return f"{self.rate:6.2f} images/s, {1000 * self.cpu:7.1f} ms of CPU per image, {self.memory:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=60, metavar="N", help="for compact (default: 60)")
    parser.add_argument("--random", type=int, default=400, metavar="N", help="for a small one (default: 400)")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)"
    )
    parser.add_argument("--actors", nargs="+", type=int, default=(1, 2), metavar="N", help="default: 1 2")
    args = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")  # of actors too, as of the plain loop
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        if "costs" in args.parts:
            costs(draw(folder / "costs", min(args.images, 8)), folder / "answers")
        if set(args.parts) != {"costs"}:
            with connected(None):
                engine(args, folder)


def engine(args: argparse.Namespace, folder: Path) -> None:
    """The parts that run on Ray."""
    name = random_model(folder / "random_model")
    if "random" in args.parts:
        compare("random model", name, args.random, folder / "random", args.actors)
    if "growth" in args.parts:
        growth(name, args.random, folder / "growth")
    if "compact" in args.parts:
        compare("compact", "compact", args.images, folder / "compact", args.actors)


def random_model(folder: Path) -> str:
    """A small network with random weights that reads the text encoder of compact."""
    text = TextConfig(f"{MODEL_PREFIX}compact")
    image = ResNetConfig(depth=18, form="torchvision", norm="group", width=8, channels=32)
    sizes = {"short_side": 64, "long_side": 128, "channels": 32, "rounds": 2, "pixels": 12}
    torch.manual_seed(0)
    config = ModelConfig(image=image, text=text, count_padding=False, **sizes)  # type: ignore[arg-type]
    save_model(build_model(config), folder)
    return str(folder)


def draw(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        height, width = SIZES[number % len(SIZES)]
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
        small.resize((width, height)).save(folder / f"{number:05d}.jpg", quality=90)
    return folder


def compare(title: str, model: str, count: int, folder: Path, actors: Iterable[int]) -> None:
    """Print the speed of the plain loop before and after that of so many actors, and the ratios."""
    images = draw(folder / "images", count)
    before = plain(model, images)
    pools = {n: by_actors(model, images, folder / f"out{n}", n) for n in actors}
    loops = (before, plain(model, images))
    rate, cpu = mean(loop.rate for loop in loops), mean(loop.cpu for loop in loops)
    print(f"{title}, {count} images of {len(SIZES)} sizes")
    for loop in loops:
        print(f"  plain loop: {loop}")
    for n, speed in pools.items():
        ratio = f"{speed.rate / rate:.2f} of the plain rate, {cpu / speed.cpu:.2f} by CPU"
        print(f"  {n} actors of {threads(n)} threads: {speed}; {ratio}", flush=True)


def plain(model: str, images: Path) -> Speed:
    """Ground every image and encode its masks in this process, with the threads of one actor."""
    grounder = ppmn.load(model, threads=threads(1))
    files = sorted(images.iterdir())
    with Watch() as watch:
        for file in files:
            ppmn.to_coco(grounder.ground(file, CAPTION))
            if file == files[0]:
                start, cpu = time.perf_counter(), time.process_time()
        count = len(files) - 1
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
    return Speed(count / seconds, used / count, watch.memory)


def threads(actors: int) -> int:
    return max(1, (os.cpu_count() or 1) // actors) if "OMP_NUM_THREADS" not in os.environ else 1


def by_actors(model: str, images: Path, out: Path, actors: int) -> Speed:
    """The same on Ray, from the time when each actor may have written a shard until the last one."""
    pool = PoolOptions(actors=actors, threads=threads(actors))
    with Watch(out / "shards") as watch:
        corpus(images, out, model=model, caption=CAPTION, shard_size=SHARD_SIZE, pool=pool)
    files = sorted((out / "shards").iterdir(), key=lambda file: file.stat().st_mtime)
    count = sum(len(pq.read_table(file, columns=["image"])["image"].unique()) for file in files[actors:])
    seconds = files[-1].stat().st_mtime - files[actors - 1].stat().st_mtime
    warm = [cpu for number, cpu in watch.cpu if number >= actors]
    return Speed(count / seconds, (warm[-1] - warm[0]) / count, watch.memory)


def costs(images: Path, out: Path) -> None:
    """Print the CPU time of each part of the work on one image, of compact with one thread."""
    grounder = ppmn.load("compact", device="cpu", threads=1)
    files = sorted(images.iterdir())
    grounder.ground(files[0], CAPTION)
    spent: dict[str, float] = defaultdict(float)
    rows: list[dict] = []

    @contextmanager
    def part(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        spent[name] += 1e3 * (time.process_time() - start) / len(files)

    for file in files:
        with part("reading and hashing"):
            digest = hashlib.sha256(content := file.read_bytes()).hexdigest()
        with part("decoding"):
            image = read_image(content)
        with part("image encoder"):
            encoded = grounder.encode(image)
        with part("text encoder, matching and rounds"):
            found = encoded.ground(CAPTION)
        with part("masks and their RLE"):
            rows += phrase_rows(found, image=file.name, image_sha256=digest, model_sha256="")
    results = ResultFolder(str(out))
    results.prepare()
    results.write_shard("first", rows, [], ShardInfo(""))  # imports and threads of Arrow
    with part("writing"):
        results.write_shard("shard", rows, [], ShardInfo(""))
    print(
        f"compact, {len(files)} images, {len(rows) // len(files)} phrases, {grounder.runtime.name}, 1 thread"
    )
    for name, milliseconds in spent.items():
        print(f"  {name}: {milliseconds:.1f} ms of CPU per image")
    size = (out / "shards" / "shard.parquet").stat().st_size
    print(f"  all: {sum(spent.values()):.1f} ms of CPU and {size / 1e3 / len(files):.1f} kB per image")


def growth(model: str, count: int, folder: Path) -> None:
    """Print the speed of one actor on a quarter of the images and on all of them."""
    speeds = []
    for part in (count // 4, count):
        speeds.append(by_actors(model, draw(folder / f"images{part}", part), folder / f"out{part}", 1))
        print(f"  1 actor, {part} images: {speeds[-1]}", flush=True)
    few, many = speeds
    rates = f"{few.rate / many.rate:.2f} by the clock, {many.cpu / few.cpu:.2f} by CPU"
    print(
        f"  time per image of all to that of a quarter: {rates}; memory {many.memory / few.memory:.2f} times"
    )


class Watch:
    """Memory and CPU time of this process, or of the actors of a run, ten times per second (Linux)."""

    def __init__(self, shards: Path | None = None) -> None:
        self.shards, self.others = shards, set(_actors())
        self.memory, self.cpu = 0.0, [(0, 0.0)]
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _watch(self) -> None:
        ticks: dict[str, int] = {}
        while not self.stopped.wait(0.1):
            written = len(list(self.shards.glob("*.parquet"))) if self.shards else 0
            processes = set(_actors()) - self.others if self.shards else {str(os.getpid())}
            pages = 0
            for process in processes:
                with suppress(OSError):  # it has ended
                    fields = Path(f"/proc/{process}/statm").read_text().split()
                    pages += int(fields[1]) - int(fields[2])  # resident without shared pages
                    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    ticks[process] = int(times[11]) + int(times[12])
            self.memory = max(self.memory, pages * 4096 / 1e6)
            self.cpu.append((written, sum(ticks.values()) / os.sysconf("SC_CLK_TCK")))


def _actors() -> Iterator[str]:
    """The ids of all processes that are actors of Ray Data."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"MapWorker" in (folder / "cmdline").read_bytes():
                yield folder.name


if __name__ == "__main__":
    main()
