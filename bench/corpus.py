"""Images per second of the Ray engine with one and two actors against the plain loop, and its peak memory.

    python -m bench.corpus                        # compact on 60 images, a random model on 400
    python -m bench.corpus --images 8 --random 20

Ray's start and the loading of the model are not counted: both sides are warm when the clock starts.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import ppmn
from ppmn.config import ModelConfig, ResNetConfig
from ppmn.grounding.corpus_pool import PoolOptions, connected
from ppmn.grounding.corpus_run import corpus
from ppmn.model.folder import build_model, save_model

CAPTION = "In this image there are two dogs on the green grass, and a red ball under the blue sky."
SIZES = ((480, 640), (640, 480), (427, 640), (600, 400))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=60, metavar="N", help="for compact (default: 60)")
    parser.add_argument("--random", type=int, default=400, metavar="N", help="for a small one (default: 400)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, connected(None):
        folder = Path(root)
        compare("compact", "compact", args.images, folder / "compact")
        name = random_model(folder / "random_model")
        compare("random model", name, args.random, folder / "random")
        growth(name, args.random, folder / "growth")


def random_model(folder: Path) -> str:
    """A small network with random weights that reads the text encoder of compact."""
    text = ppmn.load("compact", device="cpu").model.config.text
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


def compare(title: str, model: str, count: int, folder: Path) -> None:
    """Print the rates of the plain loop and of one and two actors, and their ratios."""
    images = draw(folder / "images", count)
    plain = count / plain_seconds(model, images)
    print(f"{title}, {count} images: plain loop {plain:.2f} images/s")
    for actors in (1, 2):
        threads = max(1, torch.get_num_threads() // actors)
        rate = count / engine_seconds(model, images, folder / f"out{actors}", actors, threads)
        ratio = f"{rate / plain:.2f} of the plain loop"
        print(f"  {actors} actors of {threads} threads: {rate:.2f} images/s, {ratio}")


def plain_seconds(model: str, images: Path) -> float:
    """Load, ground every image and encode its masks, in this process."""
    start = time.perf_counter()
    grounder = ppmn.load(model)
    for file in sorted(images.iterdir()):
        ppmn.to_coco(grounder.ground(file, CAPTION))
    return time.perf_counter() - start


def engine_seconds(model: str, images: Path, out: Path, actors: int, threads: int) -> float:
    """The same by actors, which load the model as well."""
    pool = PoolOptions(actors=actors, threads=threads)
    return corpus(images, out, model=model, caption=CAPTION, chunk_size=8, pool=pool).seconds


def growth(model: str, count: int, folder: Path) -> None:
    """Print how time grows from a quarter of the images to all, and the peak memory of both."""
    seconds, peaks = [], []
    for part in (count // 4, count):
        images = draw(folder / f"images{part}", part)
        with PeakMemory() as peak:
            seconds.append(engine_seconds(model, images, folder / f"out{part}", 1, 1))
        peaks.append(peak.megabytes)
        print(f"  {part} images: {seconds[-1]:.1f} s, peak {peak.megabytes:.0f} MB in all processes")
    per_image = (seconds[1] - seconds[0]) / (count - count // 4)
    print(f"  {1000 * per_image:.1f} ms per further image; memory {peaks[1] / peaks[0]:.2f} times")


class PeakMemory:
    """The largest sum of memory of this process and the actors, sampled ten times per second (Linux)."""

    def __enter__(self) -> "PeakMemory":
        self.megabytes, self.stopped = 0.0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.stopped.wait(0.1):
            self.megabytes = max(self.megabytes, _memory())


def _memory() -> float:
    """Private memory of this process and of Ray's actors, in MB."""
    total = 0
    own = str(Path("/proc/self").resolve().name)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes()
            if folder.name == own or name.startswith(b"ray::MapWorker"):
                fields = (folder / "statm").read_text().split()
                total += int(fields[1]) - int(fields[2])  # resident without shared pages
        except OSError:
            continue
    return total * 4096 / 1e6


if __name__ == "__main__":
    main()
